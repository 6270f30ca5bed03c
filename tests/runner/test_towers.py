"""Dual encoders: their methods run compiled towers, and files and undo are those of the stock model."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    CLIPConfig,
    CLIPModel,
    PreTrainedConfig,
    PreTrainedModel,
    SiglipConfig,
    SiglipModel,
    SiglipTextConfig,
    SiglipTextModel,
)

import hf_adapters
from hf_adapters._execution import STATE

from .small_models import cosine, seeded

PART = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 128}
TEXT = {**PART, "vocab_size": 60, "max_position_embeddings": 40, "eos_token_id": 49, "bos_token_id": 48}
VISION = {**PART, "image_size": 32, "patch_size": 16}
FAMILIES = {
    "clip": lambda: CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=32)),
    "siglip": lambda: SiglipModel(SiglipConfig(text_config=TEXT, vision_config=VISION)),
}


def inputs() -> dict[str, Tensor]:
    ids = torch.randint(3, 47, (2, 20), generator=torch.Generator().manual_seed(3))
    ids[0, 10], ids[1, 19] = 49, 49
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def pixels() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(4))


def embeddings(model: Any) -> list[Tensor]:
    with torch.no_grad():
        both = model(**inputs(), pixel_values=pixels())
        text, image = model.get_text_features(**inputs()), model.get_image_features(pixel_values=pixels())
    return [text.pooler_output, image.pooler_output, both.text_embeds, both.image_embeds]


@pytest.mark.parametrize(
    ("family", "target"),
    [("clip", "cpu"), ("siglip", "cpu"), pytest.param("clip", "spyre", marks=pytest.mark.slow)],
)
def test_methods_and_forward_run_the_compiled_towers(family: str, target: str, tmp_path: Path) -> None:
    model = seeded(FAMILIES[family]())
    want, weights = embeddings(model), {k: v.clone() for k, v in model.state_dict().items()}
    hf_adapters.compile(hf_adapters.compile(model, target=target), target=target)
    assert [STATE in part.__dict__ for part in (model, model.text_model, model.vision_model)] == [False, True, True]
    for got, stock in zip(embeddings(model), want, strict=True):
        assert got.dtype == torch.float32
        assert cosine(got, stock) > 0.999
    model.save_pretrained(tmp_path)
    saved = type(FAMILIES[family]()).from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(saved[name], weights[name]) for name in weights)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))) if target == "cpu" else ():
        assert cosine(embeddings(twin)[0], want[0]) > 0.999
    hf_adapters.decompile(model)
    assert type(model) is type(FAMILIES[family]())
    assert all(torch.equal(a, b) for a, b in zip(embeddings(model), want, strict=True))


def test_a_vector_taken_from_the_last_position_sees_no_padding() -> None:
    model = seeded(SiglipTextModel(SiglipTextConfig(**TEXT)))
    with torch.no_grad():
        want = model(**inputs()).pooler_output
    assert cosine(hf_adapters.compile(model, target="cpu")(**inputs()).pooler_output, want) > 0.9999


def test_when_one_tower_fails_the_other_is_stock_again() -> None:
    model = seeded(FAMILIES["clip"]())
    with torch.no_grad():
        model.vision_model.post_layernorm.weight.fill_(1e6)
    with pytest.raises(hf_adapters.WeightRangeError):
        hf_adapters.compile(model)
    assert STATE not in model.text_model.__dict__
    assert type(model) is CLIPModel


class Bare(PreTrainedModel):
    """Embeds texts by a method, with nothing to compile in its place."""

    config_class = PreTrainedConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.table = nn.Embedding(9, 64)

    def get_text_features(self, input_ids: Tensor) -> Tensor:
        return self.table(input_ids).mean(1)


def test_without_towers_there_is_nothing_to_compile() -> None:
    with pytest.raises(hf_adapters.ModelTypeError, match="load its text model alone"):
        hf_adapters.compile(Bare(PreTrainedConfig()).eval())
