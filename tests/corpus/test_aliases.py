"""Checkpoints of `new` (GTE) load into the stock class, with the weights and the frequencies of the original."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import GteConfig, GteModel

from hf_adapters.corpus.aliases import stock_values
from hf_adapters.corpus.errors import ConfigInvalid, WeightsInvalid
from hf_adapters.corpus.references import load_model, resolve

ORIGINAL: dict[str, Any] = {
    "architectures": ["NewModel"],
    "auto_map": {"AutoModel": "someone/new-impl--modeling.NewModel"},
    "model_type": "new",
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 96, "vocab_size": 50,
    "type_vocab_size": 1, "max_position_embeddings": 64, "rope_theta": 20000,
    "rope_scaling": {"type": "ntk", "factor": 8.0}, "pad_token_id": 1, "unpad_inputs": False, "pack_qkv": True,
}  # fmt: skip


def stock() -> GteModel:
    values = stock_values(ORIGINAL, "test")
    torch.manual_seed(0)
    model: GteModel = GteModel(GteConfig(**{k: v for k, v in values.items() if k != "model_type"})).eval()
    return model


def published(model: GteModel) -> dict[str, Tensor]:
    """The weights under the names of the original, with fused projections."""
    state, out = model.state_dict(), {}
    for name, value in state.items():
        if not name.startswith("layers."):
            out[f"new.{name}"] = value
    for i in range(model.config.num_hidden_layers):
        here, there = f"layers.{i}.", f"new.encoder.layer.{i}."
        for kind in ("weight", "bias"):
            parts = [state[f"{here}self_attn.{p}_proj.{kind}"] for p in "qkv"]
            out[f"{there}attention.qkv_proj.{kind}"] = torch.cat(parts)
            out[f"{there}attention.o_proj.{kind}"] = state[f"{here}self_attn.o_proj.{kind}"]
            out[f"{there}mlp.down_proj.{kind}"] = state[f"{here}mlp.down_proj.{kind}"]
            out[f"{there}attn_ln.{kind}"] = state[f"{here}post_attention_layernorm.{kind}"]
            out[f"{there}mlp_ln.{kind}"] = state[f"{here}post_mlp_layernorm.{kind}"]
        halves = [state[f"{here}mlp.{p}_proj.weight"] for p in ("up", "gate")]
        out[f"{there}mlp.up_gate_proj.weight"] = torch.cat(halves)
    return {name: value.contiguous() for name, value in out.items()}


def write(folder: Path, weights: dict[str, Tensor]) -> Path:
    (folder / "config.json").write_text(json.dumps(ORIGINAL))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_published_checkpoint_gives_the_same_embeddings(tmp_path: Path) -> None:
    expected = stock()
    built = load_model(resolve(str(write(tmp_path, published(expected)))))
    assert built.weights == "real"
    assert type(built.model) is GteModel
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        assert torch.allclose(built.model(ids).last_hidden_state, expected(ids).last_hidden_state, atol=1e-6)


def test_frequencies_are_those_of_the_original() -> None:
    width, theta, factor = 32, 20000.0, 8.0
    original = (theta * factor) ** (-torch.arange(0, width, 2).double() / width) / factor ** (2 / width)
    assert torch.allclose(stock().rotary_emb.inv_freq.double(), original, rtol=1e-6)


def test_a_renamed_weight_is_an_error(tmp_path: Path) -> None:
    weights = published(stock())
    weights["new.encoder.layer.0.attention.fused.weight"] = weights.pop("new.encoder.layer.0.attention.qkv_proj.weight")
    with pytest.raises(WeightsInvalid, match="missing"):
        load_model(resolve(str(write(tmp_path, weights))))


@pytest.mark.parametrize(
    "change",
    [{"logn_attention_scale": True}, {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, {"pack_qkv": False}],
)
def test_settings_without_a_counterpart_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigInvalid, match="no counterpart"):
        stock_values({**ORIGINAL, **change}, "test")
