"""Decoders that are published with another mask or with adapters: the stock class, told so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hf_adapters.natives import ForeignWeights, TaskRequired, family_of, load_native, native_values
from tests.natives import published as p

HEAD, KEYS, THETA, EPS = 64, 1, 10000.0, 1e-6
SIZES: dict[str, Any] = {
    "vocab_size": p.WORDS, "hidden_size": p.WIDTH, "num_hidden_layers": p.LAYERS, "num_attention_heads": p.HEADS,
    "num_key_value_heads": KEYS, "head_dim": HEAD, "intermediate_size": p.INNER, "hidden_act": "silu",
    "rms_norm_eps": EPS, "rope_theta": THETA, "max_position_embeddings": 512, "use_cache": False,
    "pad_token_id": None,
}  # fmt: skip
PPLX = {
    **SIZES, "model_type": "bidirectional_pplx_qwen3", "architectures": ["PPLXQwen3Model"],
    "use_bidirectional_attention": True, "auto_map": {"AutoModel": "modeling.PPLXQwen3Model"},
}  # fmt: skip
LLAMA = {**SIZES, "model_type": "llama_bidirec", "architectures": ["LlamaBidirectionalModel"], "pooling": "avg"}
GTE = {
    **SIZES, "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "is_causal": False,
    "auto_map": {"AutoModel": "modeling_qwen.Qwen2Model"},
}  # fmt: skip
JINA_SMALL = {**SIZES, "model_type": "jina_embeddings_v5", "architectures": ["JinaEmbeddingsV5Model"]}
JINA_NANO = {**JINA_SMALL, "is_decoder": False, "num_key_value_heads": p.HEADS, "pad_token_id": 0}


def checkpoint(kind: str, keys: int = KEYS) -> p.Weights:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (p.WORDS, p.WIDTH), "norm.weight": (p.WIDTH,)}
    biased = kind == "qwen2"
    for i in range(p.LAYERS):
        layer = f"layers.{i}"
        shapes |= p.linear(f"{layer}.self_attn.q_proj", p.HEADS * HEAD, p.WIDTH, biased)
        shapes |= p.linear(f"{layer}.self_attn.k_proj", keys * HEAD, p.WIDTH, biased)
        shapes |= p.linear(f"{layer}.self_attn.v_proj", keys * HEAD, p.WIDTH, biased)
        shapes |= p.linear(f"{layer}.self_attn.o_proj", p.WIDTH, p.HEADS * HEAD, False)
        for name, rows, columns in (("gate", p.INNER, p.WIDTH), ("up", p.INNER, p.WIDTH), ("down", p.WIDTH, p.INNER)):
            shapes |= p.linear(f"{layer}.mlp.{name}_proj", rows, columns, False)
        shapes |= {f"{layer}.{name}.weight": (p.WIDTH,) for name in ("input_layernorm", "post_attention_layernorm")}
        if kind == "qwen3":
            shapes |= {f"{layer}.self_attn.{name}_norm.weight": (HEAD,) for name in "qk"}
    return p.draw(shapes)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * weight


def head_norm(w: p.Weights, name: str, x: Tensor) -> Tensor:
    return rms(x.view(x.shape[0], -1, HEAD), w[name]).view(x.shape) if name in w else x


def reference(w: p.Weights, row: Tensor, *, causal: bool) -> Tensor:
    h = w["embed_tokens.weight"][row]
    for i in range(p.LAYERS):
        own = f"layers.{i}.self_attn"
        x = rms(h, w[f"layers.{i}.input_layernorm.weight"])
        q, k, v = (p.apply(w, f"{own}.{name}_proj", x) for name in "qkv")
        q, k = head_norm(w, f"{own}.q_norm.weight", q), head_norm(w, f"{own}.k_norm.weight", k)
        h = h + p.apply(w, f"{own}.o_proj", p.attend(q, k, v, theta=THETA, causal=causal))
        x = rms(h, w[f"layers.{i}.post_attention_layernorm.weight"])
        gate = p.apply(w, f"layers.{i}.mlp.gate_proj", x)
        inner = gate / (1.0 + torch.exp(-gate)) * p.apply(w, f"layers.{i}.mlp.up_proj", x)
        h = h + p.apply(w, f"layers.{i}.mlp.down_proj", inner)
    return rms(h, w["norm.weight"])


def difference(folder: Path, weights: p.Weights, *, causal: bool, task: str | None = None) -> float:
    model = load_native(folder, task=task).double()
    ids, mask = p.sentences()
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    expected = [reference(p.double(weights), ids[row, : int(mask[row].sum())], causal=causal) for row in range(3)]
    return p.largest_difference(states, mask, expected)


@pytest.mark.parametrize(("config", "kind"), [(PPLX, "qwen3"), (LLAMA, "llama"), (GTE, "qwen2")])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_every_token_sees_every_token(tmp_path: Path, config: dict[str, Any], kind: str, prefix: str) -> None:
    weights = checkpoint(kind)
    folder = p.write(tmp_path, config, {prefix + name: value for name, value in weights.items()})
    assert difference(folder, weights, causal=False) < 1e-5
    assert difference(folder, weights, causal=True) > 1e-2


def adapters(weights: p.Weights, prefix: str) -> tuple[p.Weights, p.Weights]:
    """An adapter file, and the base weights with it merged."""
    generator = torch.Generator().manual_seed(8)
    found, merged = {}, p.double(weights)
    for name, value in weights.items():
        if "_proj.weight" in name:
            path = f"base_model.model.{prefix}{name.removesuffix('.weight')}"
            a, b = (0.2 * torch.randn(shape, generator=generator) for shape in ((4, value.shape[1]), (len(value), 4)))
            found |= {f"{path}.lora_A.weight": a, f"{path}.lora_B.weight": b}
            merged[name] = merged[name] + 8 / 4 * (b.double() @ a.double())
    return found, merged


def write_adapter(folder: Path, task: str, found: p.Weights, **settings: Any) -> None:
    place = folder / "adapters" / task
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, **settings}))
    save_file(found, place / "adapter_model.safetensors")


@pytest.mark.parametrize(("config", "kind", "causal"), [(JINA_SMALL, "qwen3", True), (JINA_NANO, "llama", False)])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_adapters_of_a_task_are_merged(
    tmp_path: Path, config: dict[str, Any], kind: str, causal: bool, prefix: str
) -> None:
    weights = checkpoint(kind, config["num_key_value_heads"])
    found, merged = adapters(weights, prefix)
    folder = p.write(tmp_path, config, {prefix + name: value for name, value in weights.items()})
    write_adapter(folder, "retrieval", found)
    assert difference(folder, merged, causal=causal, task="retrieval") < 1e-5


def test_adapters_that_cannot_be_merged_are_errors(tmp_path: Path) -> None:
    weights = checkpoint("qwen3")
    found, _ = adapters(weights, "")
    folder = p.write(tmp_path, JINA_SMALL, weights)
    with pytest.raises(TaskRequired, match="text-matching"):
        load_native(folder)
    with pytest.raises(ForeignWeights, match="adapter_config"):
        load_native(folder, task="retrieval")
    write_adapter(folder, "retrieval", found, use_dora=True)
    with pytest.raises(ForeignWeights, match="plain LoRA"):
        load_native(folder, task="retrieval")
    half = dict(found)
    del half["base_model.model.layers.0.mlp.up_proj.lora_B.weight"]
    write_adapter(folder, "clustering", half)
    with pytest.raises(ForeignWeights, match="lora_B"):
        load_native(folder, task="clustering")
    strange = {name.replace("up_proj", "upper"): value for name, value in found.items()}
    write_adapter(folder, "classification", strange)
    with pytest.raises(ForeignWeights, match="does not have"):
        load_native(folder, task="classification")


def test_a_renamed_weight_is_an_error(tmp_path: Path) -> None:
    weights = checkpoint("qwen3")
    weights["layers.0.self_attn.query_norm.weight"] = weights.pop("layers.0.self_attn.q_norm.weight")
    with pytest.raises(ForeignWeights, match=r"q_norm.*query_norm"):
        load_native(p.write(tmp_path, PPLX, weights))


@pytest.mark.parametrize(
    ("change", "causal"),
    [
        ({"is_causal": False}, False),
        ({"is_causal": True}, True),
        ({"is_causal": None}, True),
        ({"is_causal": None, "_name_or_path": "Alibaba-NLP/gte-Qwen2-1.5B-instruct"}, False),
        ({"is_causal": None, "auto_map": {"AutoModel": "dunzhang/stella_en_1.5B_v5--modeling_qwen.Qwen2Model"}}, False),
    ],
)
def test_the_mask_of_models_with_the_code_of_gte_qwen2(change: dict[str, Any], causal: bool) -> None:
    values = {name: value for name, value in {**GTE, **change}.items() if value is not None}
    assert ("is_causal" not in native_values(values)) is causal


def test_stock_decoders_are_left_alone() -> None:
    assert family_of({**SIZES, "model_type": "qwen3", "architectures": ["Qwen3Model"]}) is None


VOYAGE = {
    **SIZES, "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_labels": 96,
    "auto_map": {"AutoModel": "modeling_qwen3_bidirectional.Qwen3Model"},
}  # fmt: skip


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_voyage_sees_everything_and_projects_every_token(tmp_path: Path, prefix: str) -> None:
    plain = checkpoint("qwen3")
    projection = p.draw({"linear.weight": (96, p.WIDTH)})
    folder = p.write(tmp_path, VOYAGE, {**{prefix + name: value for name, value in plain.items()}, **projection})
    assert family_of(VOYAGE) is None
    model = load_native(folder, name="voyageai/voyage-4-nano").double()
    ids, mask = p.sentences()
    with torch.no_grad():
        found = model(input_ids=ids, attention_mask=mask).last_hidden_state
    wide = {name: value.double() for name, value in plain.items()}
    for row, kept, states in zip(ids, mask.bool(), found, strict=True):
        expected = reference(wide, row[kept], causal=False) @ projection["linear.weight"].double().T
        assert float((states[kept] - expected).abs().max() / expected.abs().max()) < 1e-5


def test_a_missing_projection_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ForeignWeights, match="linear"):
        load_native(p.write(tmp_path, VOYAGE, checkpoint("qwen3")), name="voyage-4-nano")


@pytest.mark.parametrize(("name", "causal"), [("Alibaba-NLP/gte-Qwen2-1.5B-instruct", False), ("other/model", True)])
def test_the_name_decides_where_the_config_does_not_say(tmp_path: Path, name: str, causal: bool) -> None:
    config = {key: value for key, value in GTE.items() if key != "is_causal"}
    model = load_native(p.write(tmp_path, config, checkpoint("qwen2")), name=name)
    assert getattr(model.config, "is_causal", True) is causal
