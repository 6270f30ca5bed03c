"""jina-embeddings-v3: adapters merged for a task or for none, then the stock class, which alone loads it wrongly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_adapters.natives import ForeignWeights, TaskRequired, family_of, load_native
from tests.natives import published as p

TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
RANK, ALPHA, THETA = 4, 1, 20000.0
CONFIG: dict[str, Any] = {
    "architectures": ["XLMRobertaModel"], "vocab_size": p.WORDS, "hidden_size": p.WIDTH,
    "num_hidden_layers": p.LAYERS, "num_attention_heads": p.HEADS, "intermediate_size": p.INNER, "hidden_act": "gelu",
    "layer_norm_eps": 1e-5, "type_vocab_size": 1, "max_position_embeddings": 8194, "pad_token_id": 1,
    "position_embedding_type": "rotary", "rotary_emb_base": THETA, "lora_rank": RANK, "lora_alpha": ALPHA,
    "lora_adaptations": TASKS, "use_flash_attn": True, "emb_pooler": "mean",
    "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
}  # fmt: skip


def plain_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (p.WORDS, p.WIDTH),
        "embeddings.token_type_embeddings.weight": (1, p.WIDTH),
        **p.norm("emb_ln"),
        **p.linear("pooler.dense", p.WIDTH, p.WIDTH),
    }
    for i in range(p.LAYERS):
        layer = f"encoder.layers.{i}"
        shapes |= p.linear(f"{layer}.mixer.Wqkv", 3 * p.WIDTH, p.WIDTH) | p.norm(f"{layer}.norm1")
        shapes |= p.linear(f"{layer}.mixer.out_proj", p.WIDTH, p.WIDTH) | p.norm(f"{layer}.norm2")
        shapes |= p.linear(f"{layer}.mlp.fc1", p.INNER, p.WIDTH) | p.linear(f"{layer}.mlp.fc2", p.WIDTH, p.INNER)
    return shapes


def checkpoint() -> tuple[p.Weights, p.Weights]:
    """Plain base weights, and the same as published, with an adapter on every matrix and table."""
    base = p.draw(plain_shapes())
    published: p.Weights = {}
    generator = torch.Generator().manual_seed(3)
    for name, value in base.items():
        if value.dim() == 1:
            published[name] = value
            continue
        rows, columns = value.shape
        shapes = ((rows, RANK), (RANK, columns)) if "embeddings" in name else ((RANK, columns), (rows, RANK))
        path = name.removesuffix(".weight") + ".parametrizations.weight"
        published[f"{path}.original"] = value
        for part, shape in zip("AB", shapes, strict=True):
            published[f"{path}.0.lora_{part}"] = 0.3 * torch.randn((len(TASKS), *shape), generator=generator)
    return base, published


def merged(base: p.Weights, published: p.Weights, task: int | None) -> p.Weights:
    found = p.double(base)
    for name in base:
        path = name.removesuffix(".weight") + ".parametrizations.weight.0.lora_"
        if task is None or f"{path}A" not in published:
            continue
        a, b = published[f"{path}A"][task].double(), published[f"{path}B"][task].double()
        found[name] = found[name] + ALPHA / RANK * (a @ b if "embeddings" in name else b @ a)
    return found


def reference(w: p.Weights, row: Tensor) -> Tensor:
    eps = 1e-5
    h = p.embed(w, row, "emb_ln", eps)
    for i in range(p.LAYERS):
        layer = f"encoder.layers.{i}"
        q, k, v = p.apply(w, f"{layer}.mixer.Wqkv", h).split(p.WIDTH, dim=-1)
        mixed = p.apply(w, f"{layer}.mixer.out_proj", p.attend(q, k, v, theta=THETA))
        h = p.normalise(w, f"{layer}.norm1", h + mixed, eps)
        y = p.apply(w, f"{layer}.mlp.fc2", p.gelu(p.apply(w, f"{layer}.mlp.fc1", h)))
        h = p.normalise(w, f"{layer}.norm2", h + y, eps)
    return h


@pytest.mark.parametrize("task", [None, "retrieval.query", "text-matching"])
@pytest.mark.parametrize("prefix", ["", "roberta."])
def test_a_published_checkpoint_computes_the_described_formulas(tmp_path: Path, task: str | None, prefix: str) -> None:
    base, published = checkpoint()
    named = {prefix + name: value for name, value in published.items()}
    model = load_native(p.write(tmp_path, CONFIG, named), task=task)
    assert type(model).__module__.startswith("transformers.")
    ids, mask = p.sentences()
    with torch.no_grad():
        states = model.double()(input_ids=ids, attention_mask=mask).last_hidden_state
    weights = merged(base, published, None if task is None else TASKS.index(task))
    expected = [reference(weights, ids[row, : int(mask[row].sum())]) for row in range(3)]
    assert p.largest_difference(states, mask, expected) < 1e-5


def test_tasks_differ(tmp_path: Path) -> None:
    folder = p.write(tmp_path, CONFIG, checkpoint()[1])
    ids, mask = p.sentences()
    with torch.no_grad():
        found = [load_native(folder, task=t)(ids, attention_mask=mask).last_hidden_state for t in (None, *TASKS)]
    assert all(float((a - b).abs().max()) > 0.1 for i, a in enumerate(found) for b in found[:i])


@pytest.mark.parametrize("spoil", ["lora_A", "original", "renamed", "norm"])
def test_a_key_that_is_not_merged_or_renamed_is_an_error(tmp_path: Path, spoil: str) -> None:
    _, weights = checkpoint()
    fc1 = "encoder.layers.0.mlp.fc1.parametrizations.weight"
    if spoil == "lora_A":
        del weights[f"{fc1}.0.lora_A"]
    elif spoil == "original":
        weights[f"{fc1}.first"] = weights.pop(f"{fc1}.original")
    elif spoil == "renamed":
        weights["encoder.layers.0.mixer.Wq.bias"] = weights.pop("encoder.layers.0.mixer.Wqkv.bias")
    else:
        del weights["emb_ln.bias"]
    with pytest.raises(ForeignWeights):
        load_native(p.write(tmp_path, CONFIG, weights))


def test_unknown_tasks_name_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(TaskRequired, match=r"retrieval.query"):
        load_native(p.write(tmp_path, CONFIG, checkpoint()[1]), task="translation")


@pytest.mark.parametrize("guise", [{}, {"model_type": "xlm-roberta", "architectures": ["XLMRobertaLoRA"]}])
def test_every_guise_is_recognised(guise: dict[str, Any]) -> None:
    found = family_of({**CONFIG, **guise})
    assert found is not None
    assert found.name == "jina-embeddings-v3"


def test_plain_xlm_roberta_is_left_alone() -> None:
    assert family_of({"model_type": "xlm-roberta", "architectures": ["XLMRobertaModel"]}) is None
