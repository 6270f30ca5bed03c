"""Patched models that the caller compiles with `torch.compile`, whole: what the host computes is part of the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    EsmConfig,
    EsmModel,
    Qwen2Config,
    Qwen2ForSequenceClassification,
    T5Config,
    T5EncoderModel,
    XmodConfig,
    XmodModel,
)

import hf_adapters

from .small_models import COMMON, batch, bert, clip_text, cosine, roberta, seeded

ONE_LAYER: dict[str, Any] = {**COMMON, "num_hidden_layers": 1, "num_attention_heads": 1, "max_position_embeddings": 70}


def t5() -> Any:
    config = T5Config(vocab_size=90, d_model=64, d_kv=64, num_heads=1, d_ff=64, num_layers=1)
    return seeded(T5EncoderModel(config), gain=0.5)


def esm() -> Any:
    config = EsmConfig(
        **ONE_LAYER, pad_token_id=1, mask_token_id=5, token_dropout=True, position_embedding_type="absolute"
    )
    return seeded(EsmModel(config, add_pooling_layer=False))


def classifier() -> Any:
    config = Qwen2Config(**ONE_LAYER, num_key_value_heads=1, pad_token_id=0, num_labels=3)
    return seeded(Qwen2ForSequenceClassification(config))


def xmod() -> Any:
    return seeded(XmodModel(XmodConfig(**ONE_LAYER, default_language="en_XX", pad_token_id=1), add_pooling_layer=False))


@pytest.mark.parametrize(
    ("build", "length", "result"),
    [
        pytest.param(roberta, 30, "last_hidden_state", id="position ids", marks=pytest.mark.slow),
        pytest.param(t5, 64, "last_hidden_state", id="relative buckets", marks=pytest.mark.slow),
        pytest.param(esm, 64, "last_hidden_state", id="mask tokens", marks=pytest.mark.slow),
        pytest.param(xmod, 64, "last_hidden_state", id="networks by language", marks=pytest.mark.slow),
        pytest.param(clip_text, 40, "pooler_output", id="row of the last token", marks=pytest.mark.slow),
        pytest.param(classifier, 64, "logits", id="row of the last real token", marks=pytest.mark.slow),
    ],
)
def test_what_the_host_computes_is_part_of_one_graph(build: Callable[[], Any], length: int, result: str) -> None:
    inputs, model = batch(2, length), build()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    padding = model.config.pad_token_id
    ids = torch.where(mask.bool(), ids, torch.tensor(0 if padding is None else padding))
    with torch.no_grad():
        want = model(input_ids=ids, attention_mask=mask)[result]
    model = hf_adapters.patch(model).half().to("spyre")
    # Weights that an adapter derived are refreshed outside of the graph, and the host reads which languages there are.
    one_graph = torch.compile(model, dynamic=False, fullgraph=build not in (classifier, esm, xmod))
    got = one_graph(input_ids=ids.to("spyre"), attention_mask=mask.to("spyre"))[result].cpu().float()
    keep = mask.bool() if got.dim() == 3 else slice(None)
    assert cosine(got[keep], want[keep]) > 0.999


def test_padded_weights_ask_for_a_graph_that_may_break() -> None:
    model = hf_adapters.patch(bert(num_attention_heads=2), target="cpu")
    with pytest.raises(
        torch._dynamo.exc.Unsupported, match=r"without fullgraph=True, or hf_adapters\.compile\(model\)"
    ):
        torch.compile(model, backend="eager", fullgraph=True)(**batch(2, 64))
