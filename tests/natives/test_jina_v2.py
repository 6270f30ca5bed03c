"""jina-embeddings-v2 from its published names: both layouts, ALiBi, and no weight left random."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hf_adapters.natives import ForeignConfig, ForeignWeights, family_of, load_native, native_values
from hf_adapters.natives.jina_bert import JinaBertConfig, JinaBertModel, alibi_bias, alibi_slopes
from tests.natives import published as p

CONFIG: dict[str, Any] = {
    "model_type": "bert", "architectures": ["JinaBertForMaskedLM"], "position_embedding_type": "alibi",
    "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
    "feed_forward_type": "geglu", "vocab_size": p.WORDS, "hidden_size": p.WIDTH, "num_hidden_layers": p.LAYERS,
    "num_attention_heads": p.HEADS, "intermediate_size": p.INNER, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
    "max_position_embeddings": 8192, "emb_pooler": "mean", "attn_implementation": "torch",
}  # fmt: skip
CODE = {
    **CONFIG,
    "auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"},
}
KINDS = {
    "gate_first": CONFIG,
    "qk_norm": CONFIG,
    "reglu": {**CONFIG, "feed_forward_type": "reglu"},
    "original": {**CONFIG, "feed_forward_type": "original"},
    "gate_last": CODE,
}


def checkpoint(kind: str) -> p.Weights:
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (p.WORDS, p.WIDTH),
        "embeddings.token_type_embeddings.weight": (2, p.WIDTH),
        **p.norm("embeddings.LayerNorm"),
        **p.linear("pooler.dense", p.WIDTH, p.WIDTH),
    }
    for i in range(p.LAYERS):
        layer = f"encoder.layer.{i}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            shapes |= p.linear(f"{layer}.attention.{name}", p.WIDTH, p.WIDTH)
        shapes |= p.norm(f"{layer}.attention.output.LayerNorm")
        if kind in ("qk_norm", "gate_last"):
            shapes |= p.norm(f"{layer}.attention.self.layer_norm_q") | p.norm(f"{layer}.attention.self.layer_norm_k")
        if kind == "original":
            shapes |= p.linear(f"{layer}.intermediate.dense", p.INNER, p.WIDTH)
            shapes |= p.linear(f"{layer}.output.dense", p.WIDTH, p.INNER) | p.norm(f"{layer}.output.LayerNorm")
        elif kind == "gate_last":
            shapes |= p.linear(f"{layer}.mlp.up_gated_layer", 2 * p.INNER, p.WIDTH, bias=False)
            shapes |= p.linear(f"{layer}.mlp.down_layer", p.WIDTH, p.INNER)
            shapes |= p.norm(f"{layer}.layer_norm_1") | p.norm(f"{layer}.layer_norm_2")
        else:
            shapes |= p.linear(f"{layer}.mlp.gated_layers", 2 * p.INNER, p.WIDTH, bias=False)
            shapes |= p.linear(f"{layer}.mlp.wo", p.WIDTH, p.INNER) | p.norm(f"{layer}.mlp.layernorm")
    return p.draw(shapes)


def reference(w: p.Weights, kind: str, row: Tensor) -> Tensor:
    eps = 1e-12
    h = p.embed(w, row, "embeddings.LayerNorm", eps)
    for i in range(p.LAYERS):
        layer = f"encoder.layer.{i}"
        own = f"{layer}.attention.self"
        q, k, v = (p.apply(w, f"{own}.{name}", h) for name in ("query", "key", "value"))
        if f"{own}.layer_norm_q.weight" in w:
            q, k = p.normalise(w, f"{own}.layer_norm_q", q, eps), p.normalise(w, f"{own}.layer_norm_k", k, eps)
        mixed = p.attend(q, k, v, slopes=p.slopes_of(p.HEADS))
        a = h + p.apply(w, f"{layer}.attention.output.dense", mixed)
        a = p.normalise(w, f"{layer}.attention.output.LayerNorm", a, eps)
        if kind == "gate_last":
            h = p.normalise(w, f"{layer}.layer_norm_1", h + a, eps)
            both = p.apply(w, f"{layer}.mlp.up_gated_layer", h)
            inner = both[:, : p.INNER] * p.gelu(both[:, p.INNER :])
            h = p.normalise(w, f"{layer}.layer_norm_2", h + p.apply(w, f"{layer}.mlp.down_layer", inner), eps)
        elif kind == "original":
            inner = p.gelu(p.apply(w, f"{layer}.intermediate.dense", a))
            h = p.normalise(w, f"{layer}.output.LayerNorm", a + p.apply(w, f"{layer}.output.dense", inner), eps)
        else:
            both = p.apply(w, f"{layer}.mlp.gated_layers", a)
            act = torch.relu if kind == "reglu" else p.gelu
            inner = act(both[:, : p.INNER]) * both[:, p.INNER :]
            h = p.normalise(w, f"{layer}.mlp.layernorm", a + p.apply(w, f"{layer}.mlp.wo", inner), eps)
    return h


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_published_checkpoint_computes_the_described_formulas(tmp_path: Path, kind: str, attention: str) -> None:
    weights = checkpoint(kind)
    head = {"cls.predictions.bias": torch.zeros(p.WORDS), "bert.embeddings.position_ids": torch.arange(8)[None]}
    named = {f"bert.{name}": value for name, value in weights.items()}
    model = load_native(p.write(tmp_path, KINDS[kind], {**named, **head})).double()
    model.set_attn_implementation(attention)
    ids, mask = p.sentences()
    with torch.no_grad():
        states = model(input_ids=ids, attention_mask=mask).last_hidden_state
    expected = [reference(p.double(weights), kind, ids[row, : int(mask[row].sum())]) for row in range(3)]
    assert p.largest_difference(states, mask, expected) < 1e-6


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 16, 20])
def test_slopes(heads: int) -> None:
    assert alibi_slopes(heads) == pytest.approx(p.slopes_of(heads))


def test_slopes_of_twelve_heads_are_the_standard_ones() -> None:
    assert alibi_slopes(12) == pytest.approx([2.0**-i for i in range(1, 9)] + [2.0**-x for x in (0.5, 1.5, 2.5, 3.5)])


def test_the_bias_falls_with_the_distance_on_both_sides() -> None:
    bias = alibi_bias(2, 4, torch.zeros((), dtype=torch.float64))
    assert bias.shape == (1, 2, 4, 4)
    assert torch.equal(bias, bias.transpose(2, 3))
    assert bias[0, 0, 0].tolist() == [0.0, -(2.0**-4), -2 * 2.0**-4, -3 * 2.0**-4]


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}, 32_690_688),
        ({}, 137_368_320),
        ({"vocab_size": 61056}, 160_813_824),
        ({"vocab_size": 61056, "qk_norm": True}, 160_850_688),
        ({"vocab_size": 61056, "qk_norm": True, "layout": "gate_last"}, 160_869_120),
        (
            {
                "vocab_size": 31102, "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16,
                "intermediate_size": 4096, "feed_forward_type": "original",
            },
            335_211_520,
        ),
    ],
)  # fmt: skip
def test_published_counts_are_met_exactly(changes: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        model = JinaBertModel(JinaBertConfig(**changes))
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize("name", ["encoder.layer.1.mlp.wo.bias", "pooler.dense.weight", "embeddings.LayerNorm.weight"])
def test_a_renamed_or_missing_weight_is_an_error(tmp_path: Path, name: str) -> None:
    weights = checkpoint("gate_first")
    value = weights.pop(name)
    with pytest.raises(ForeignWeights, match="missing"):
        load_native(p.write(tmp_path / "missing", CONFIG, weights))
    with pytest.raises(ForeignWeights, match="unexpected"):
        load_native(p.write(tmp_path / "renamed", CONFIG, {**weights, f"{name}_": value}))


def test_a_weight_of_another_shape_is_an_error(tmp_path: Path) -> None:
    weights = checkpoint("gate_first")
    weights["pooler.dense.bias"] = torch.zeros(p.WIDTH + 1)
    with pytest.raises(ForeignWeights, match="expected"):
        load_native(p.write(tmp_path, CONFIG, weights))


def test_the_layout_follows_the_weights_where_the_config_is_silent() -> None:
    assert native_values(CONFIG)["qk_norm"] is False
    assert native_values(CONFIG, frozenset(checkpoint("qk_norm")))["qk_norm"] is True
    assert native_values(CODE)["layout"] == "gate_last"


def test_what_the_structure_lacks_is_refused() -> None:
    with pytest.raises(ForeignConfig, match="position_embedding_type"):
        native_values({**CONFIG, "position_embedding_type": "absolute"})
    with pytest.raises(ValueError, match="feed_forward_type"):
        JinaBertConfig(feed_forward_type="moe")
    assert family_of({"model_type": "bert", "architectures": ["BertModel"]}) is None


def test_hidden_states_attentions_and_saving(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = JinaBertConfig(vocab_size=50, hidden_size=128, num_hidden_layers=2, num_attention_heads=2)
    config._attn_implementation = "eager"
    model = JinaBertModel(config).eval()
    ids, mask = p.sentences()
    with torch.no_grad():
        out = model(input_ids=ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        embedded = model(inputs_embeds=model.get_input_embeddings()(ids), attention_mask=mask)
        as_tuple = model(input_ids=ids, attention_mask=mask, return_dict=False)
        model.save_pretrained(tmp_path)
        again = JinaBertModel.from_pretrained(tmp_path).eval()(input_ids=ids, attention_mask=mask)
    assert [tuple(states.shape) for states in out.hidden_states] == [(3, 11, 128)] * 3
    assert [tuple(weights.shape) for weights in out.attentions] == [(3, 2, 11, 11)] * 2
    assert torch.equal(embedded.last_hidden_state, out.last_hidden_state)
    assert torch.equal(as_tuple[0], out.last_hidden_state)
    assert torch.allclose(again.last_hidden_state, out.last_hidden_state, atol=1e-6)
    with pytest.raises(ValueError, match="exactly one"):
        model()
