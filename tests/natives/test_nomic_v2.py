"""nomic-embed-text-v2-moe from its published names: routing to two of the experts, against a loop over tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_adapters.natives import ForeignConfig, ForeignWeights, family_of, load_native, native_values
from hf_adapters.natives.nomic_bert_moe import NomicBertMoeConfig, NomicBertMoeModel, top_gates
from tests.natives import published as p

EXPERTS, TOP = 5, 2
CONFIG: dict[str, Any] = {
    "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "n_embd": p.WIDTH, "n_layer": p.LAYERS,
    "n_head": p.HEADS, "n_inner": p.INNER, "vocab_size": p.WORDS, "type_vocab_size": 1, "n_positions": 2048,
    "activation_function": "gelu", "layer_norm_epsilon": 1e-5, "rotary_emb_base": 10000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "prenorm": False, "qkv_proj_bias": True,
    "mlp_fc1_bias": True, "mlp_fc2_bias": True, "num_experts": EXPERTS, "moe_top_k": TOP, "moe_every_n_layers": 2,
    "moe_normalize_expert_weights": False, "num_shared_experts": 0, "expert_choice_router": False, "pad_token_id": 1,
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
}  # fmt: skip


def checkpoint() -> p.Weights:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (p.WORDS, p.WIDTH),
        "embeddings.token_type_embeddings.weight": (1, p.WIDTH),
        **p.norm("emb_ln"),
    }
    for i in range(p.LAYERS):
        layer = f"encoder.layers.{i}"
        shapes |= p.linear(f"{layer}.attn.Wqkv", 3 * p.WIDTH, p.WIDTH) | p.norm(f"{layer}.norm1")
        shapes |= p.linear(f"{layer}.attn.out_proj", p.WIDTH, p.WIDTH) | p.norm(f"{layer}.norm2")
        if i % 2 == 0:
            shapes |= p.linear(f"{layer}.mlp.fc1", p.INNER, p.WIDTH) | p.linear(f"{layer}.mlp.fc2", p.WIDTH, p.INNER)
        else:
            shapes |= p.linear(f"{layer}.mlp.router.layer", EXPERTS, p.WIDTH, bias=False)
            shapes[f"{layer}.mlp.experts.mlp.w1"] = shapes[f"{layer}.mlp.experts.mlp.w2"] = (EXPERTS * p.INNER, p.WIDTH)
            shapes[f"{layer}.mlp.experts.bias"] = (p.WIDTH,)
    return p.draw(shapes)


def mixture(w: p.Weights, path: str, h: Tensor) -> Tensor:
    """Token by token: two experts, their probabilities as they are, one bias for all."""
    w1 = w[f"{path}.experts.mlp.w1"].view(EXPERTS, p.INNER, p.WIDTH)
    w2 = w[f"{path}.experts.mlp.w2"].view(EXPERTS, p.INNER, p.WIDTH)
    out = []
    for token in h:
        chances = p.softmax_row(w[f"{path}.router.layer.weight"] @ token)
        chosen = sorted(range(EXPERTS), key=lambda e: -float(chances[e]))[:TOP]
        parts = [chances[e] * (p.gelu(w1[e] @ token) @ w2[e]) for e in chosen]
        out.append(torch.stack(parts).sum(0) + w[f"{path}.experts.bias"])
    return torch.stack(out)


def reference(w: p.Weights, row: Tensor) -> Tensor:
    eps = 1e-5
    h = p.embed(w, row, "emb_ln", eps)
    for i in range(p.LAYERS):
        layer = f"encoder.layers.{i}"
        q, k, v = p.apply(w, f"{layer}.attn.Wqkv", h).split(p.WIDTH, dim=-1)
        mixed = p.apply(w, f"{layer}.attn.out_proj", p.attend(q, k, v, theta=10000.0))
        h = p.normalise(w, f"{layer}.norm1", h + mixed, eps)
        if i % 2 == 0:
            y = p.apply(w, f"{layer}.mlp.fc2", p.gelu(p.apply(w, f"{layer}.mlp.fc1", h)))
        else:
            y = mixture(w, f"{layer}.mlp", h)
        h = p.normalise(w, f"{layer}.norm2", h + y, eps)
    return h


def test_a_published_checkpoint_computes_the_described_formulas(tmp_path: Path) -> None:
    weights = checkpoint()
    model = load_native(p.write(tmp_path, CONFIG, weights)).double()
    ids, mask = p.sentences()
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    expected = [reference(p.double(weights), ids[row, : int(mask[row].sum())]) for row in range(3)]
    # The rotary tables of the stock class are float32.
    assert p.largest_difference(states, mask, expected) < 5e-6


@pytest.mark.parametrize("k", [1, 2, 3, 8])
def test_gates_are_the_largest_probabilities_as_they_are(k: int) -> None:
    chances = torch.softmax(torch.randn(6, 7, 8, generator=torch.Generator().manual_seed(2)), dim=-1)
    values, places = chances.topk(k, dim=-1)
    assert torch.equal(top_gates(chances, k), torch.zeros_like(chances).scatter(-1, places, values))


def test_the_published_count_is_met_exactly() -> None:
    with torch.device("meta"):
        model = NomicBertMoeModel(NomicBertMoeConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 475_292_928


def test_unknown_and_missing_weights_are_errors(tmp_path: Path) -> None:
    weights = checkpoint()
    router = weights.pop("encoder.layers.1.mlp.router.layer.weight")
    with pytest.raises(ForeignWeights, match=r"missing layers.1.mlp.router.layer.weight"):
        load_native(p.write(tmp_path / "missing", CONFIG, weights))
    with pytest.raises(ForeignWeights, match="unexpected"):
        load_native(p.write(tmp_path / "renamed", CONFIG, {**weights, "encoder.layers.1.mlp.gate.weight": router}))
    fused = weights["encoder.layers.0.attn.Wqkv.weight"][:-1]
    with pytest.raises(ForeignWeights, match="three equal parts"):
        load_native(p.write(tmp_path / "cut", CONFIG, {**weights, "encoder.layers.0.attn.Wqkv.weight": fused}))


@pytest.mark.parametrize(
    "change", [{"moe_normalize_expert_weights": True}, {"num_shared_experts": 1}, {"rotary_emb_interleaved": True}]
)
def test_settings_that_would_change_results_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ForeignConfig, match=next(iter(change))):
        native_values({**CONFIG, **change})


def test_dense_models_stay_with_the_stock_class() -> None:
    assert family_of({**CONFIG, "num_experts": 0}) is None
    with pytest.raises(ValueError, match="moe_top_k"):
        NomicBertMoeConfig(moe_top_k=9)
