"""Random weights: the size that makes mistakes visible, and kept where a softmax still mixes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hf_adapters.corpus import build_model, make_inputs
from hf_adapters.corpus.weights import SCORE_LIMIT, _measure_scores, draw_weights
from tests.corpus import conftest as small


def test_matrices_have_the_initializer_range() -> None:
    model = build_model(small.bert(hidden_size=256, num_attention_heads=4)).model
    for path in ("encoder.layer.0.attention.self.query", "encoder.layer.1.intermediate.dense"):
        assert float(model.get_submodule(path).weight.detach().std()) == pytest.approx(0.1, rel=0.02)
    assert float(model.embeddings.word_embeddings.weight[1:].detach().std()) == pytest.approx(0.1, rel=0.02)


def test_norms_are_near_one_and_biases_are_not_zero() -> None:
    layer = build_model(small.bert()).model.encoder.layer[0]
    norm = layer.output.LayerNorm
    assert float(norm.weight.mean()) == pytest.approx(1.0, abs=0.05)
    assert float(norm.weight.std()) == pytest.approx(0.1, rel=0.4)
    assert float(norm.bias.std()) == pytest.approx(0.1, rel=0.4)
    assert float(layer.output.dense.bias.std()) == pytest.approx(0.1, rel=0.4)


def test_norms_that_add_one_to_their_weight_are_near_zero() -> None:
    model = build_model(small.gemma3(["sliding_attention", "full_attention"])).model
    assert float(model.layers[0].input_layernorm.weight.mean()) == pytest.approx(0.0, abs=0.05)
    decoder = small.profile("qwen3", "Qwen3Model", **small.DECODER)
    assert float(build_model(decoder).model.layers[0].input_layernorm.weight.mean()) == pytest.approx(1.0, abs=0.05)


def test_the_padding_row_is_zero() -> None:
    table = build_model(small.roberta()).model.embeddings.word_embeddings
    assert table.padding_idx == 1
    assert not bool(table.weight[1].any())
    assert bool(table.weight[0].any())


def test_shared_parameters_are_drawn_once() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(8, 8)
            self.second = nn.Linear(8, 8)
            self.second.weight = self.first.weight

    alone, tied = nn.ModuleDict({"first": nn.Linear(8, 8)}), Tied()
    draw_weights(alone, "signature", 0)
    draw_weights(tied, "signature", 0)
    assert torch.equal(tied.second.weight, alone["first"].weight)


def test_attention_that_does_not_divide_its_scores_is_calmed() -> None:
    wide = {"hidden_size": 1024, "num_heads": 8, "num_layers": 2, "attention_types": [[["global", "local"], 1]]}
    profile = small.gpt_neo()
    built = build_model(small.profile("gpt_neo", "GPTNeoModel", **{**profile.config, **wide}))
    assert len(built.calmed) == 2
    assert all(factor in (0.5, 0.25, 0.125, 0.0625, 0.03125) for factor in built.calmed.values())
    spreads = _measure_scores(built.model, make_inputs(built))
    assert len(spreads) == 2
    assert all(1.0 < spread <= 1.3 * SCORE_LIMIT for spread in spreads.values())


def test_ordinary_attention_is_left_as_it_is() -> None:
    assert build_model(small.bert()).calmed == {}


@pytest.mark.parametrize("wrong", ["head", "mask"])
def test_a_wrong_forward_is_visible(wrong: str) -> None:
    built = build_model(small.bert(hidden_size=128, num_attention_heads=4, num_hidden_layers=3))
    inputs = make_inputs(built)
    with torch.no_grad():
        right = built.model(**inputs)[0]
        if wrong == "mask":
            inputs = {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])}
        else:
            built.model.encoder.layer[0].attention.output.dense.weight[:, :32] = 0.0
        answer = built.model(**inputs)[0]
    short = -1 if wrong == "mask" else 0
    cosine = torch.cosine_similarity(right[short, :5], answer[short, :5], dim=-1)
    assert float(cosine.min()) < 0.985
