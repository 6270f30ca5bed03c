"""All adapters together on tiny models of the supported families, float64, against stock."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from hf_adapters import patch, patch_report, unpatch
from hf_adapters.adapters._traits import untreated
from hf_adapters.validation.float64 import in_float64
from tests.adapters import families


def states(model: nn.Module, side: str) -> torch.Tensor:
    # Some stock modules cast to float32 inside, which would leave their rounding in the comparison.
    with in_float64():
        return model(**families.batch(side)).last_hidden_state


def error(ours: torch.Tensor, stock: torch.Tensor, side: str) -> float:
    real = families.batch(side)["attention_mask"].bool()
    assert ours.shape == stock.shape
    assert torch.isfinite(ours).all()
    return float((ours - stock)[real].abs().amax() / stock[real].abs().amax())


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", families.NAMES)
def test_equals_stock_and_can_be_undone(name: str, side: str) -> None:
    model = families.build(name)
    stock = states(model, side)
    keys = {k: v.clone() for k, v in model.state_dict().items()}
    patch(model)
    assert error(states(model, side), stock, side) <= 1e-9
    assert keys.keys() == model.state_dict().keys()
    assert all(torch.equal(value, keys[key]) for key, value in model.state_dict().items())
    unpatch(model)
    assert torch.equal(states(model, side), stock)


@pytest.mark.parametrize(
    "name", ["bert_tiny_78", "modernbert_heads_32", "mpnet_heads_24", "gpt_neo", "llama_heads_112"]
)
def test_copies_pickles_and_follows_weights(name: str) -> None:
    model = patch(families.build(name))
    before = states(model, "right")
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(states(twin, "right"), before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.9)
    after = states(model, "right")
    assert not torch.equal(after, before)
    unpatch(model)
    assert error(after, states(model, "right"), "right") <= 1e-9


@pytest.mark.parametrize("name", ["bert_heads_32", "mpnet", "qwen3", "gpt_neo", "modernbert"])
def test_attention_weights_are_the_stock_ones(name: str) -> None:
    model = families.build(name)
    model.set_attn_implementation("eager")
    batch = families.batch("right", length=9)
    real = batch["attention_mask"].bool()
    with torch.no_grad():
        stock = model(**batch, output_attentions=True).attentions
        patch(model)
        ours = model(**batch, output_attentions=True).attentions
    assert len(stock) == len(ours) == model.config.num_hidden_layers
    for a, b in zip(ours, stock, strict=True):
        # The stock eager softmax of some families runs in float32.
        assert torch.allclose(a.transpose(1, 2)[real], b.to(a.dtype).transpose(1, 2)[real], atol=1e-6)


def test_mixed_rows_without_any_token_stay_finite() -> None:
    model = families.build("bert_heads_32")
    batch = families.batch("right")
    batch["attention_mask"][1] = 0
    with torch.no_grad():
        stock = model(**batch).last_hidden_state
        patch(model)
        ours = model(**batch).last_hidden_state
    assert torch.isfinite(ours).all()
    assert float((ours - stock)[[0, 2]].abs().amax()) <= 1e-9


def test_inputs_embeds_and_hidden_states_keep_the_true_width() -> None:
    model = families.build("bert_tiny_78")
    embeds = torch.randn(2, 9, 78, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        stock = model(inputs_embeds=embeds, output_hidden_states=True)
        patch(model)
        ours = model(inputs_embeds=embeds, output_hidden_states=True)
    assert ours.pooler_output.shape == (2, 78)
    for a, b in zip(ours.hidden_states, stock.hidden_states, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-9)


def test_a_model_in_half_precision_gets_its_frequencies_back() -> None:
    stock = families.build("qwen3", torch.float32)
    rounded = patch(families.build("qwen3", torch.float32).half())
    x = torch.empty(0, dtype=torch.float32)
    positions = torch.arange(4000, 4010)[None]
    ours, _ = rounded.rotary_emb(x, positions)
    expected, _ = stock.rotary_emb(x, positions)
    assert torch.equal(ours, expected)


def test_other_instances_and_registries_are_untouched() -> None:
    from transformers.models.llama import modeling_llama

    other = families.build("llama_heads_32")
    expected = states(other, "right")
    before = dict(vars(modeling_llama))
    patch(families.build("llama_heads_32"))
    assert torch.equal(states(other, "right"), expected)
    assert dict(vars(modeling_llama)) == before
    assert other.config._attn_implementation == "sdpa"


def test_report_names_what_was_done() -> None:
    report = patch_report(patch(families.build("xlm_roberta")))
    names = [adapter.name for adapter in report.adapters]
    assert names == [
        "embedding_tables",
        "host_indices",
        "layer_norm",
        "additive_masks",
        "head_padding",
    ]


@pytest.mark.parametrize("name", ["qwen3", "llama_heads_32", "gemma3", "t5"])
def test_a_release_that_lowers_pow_needs_fewer_adapters(name: str) -> None:
    model = families.build(name)
    stock = states(model, "left")
    patch(model, release="2026.09")
    assert error(states(model, "left"), stock, "left") <= 1e-9
    assert "small_powers" not in {a.name for a in patch_report(model).adapters}


def test_padding_recognises_norms_by_itself_when_their_adapter_is_not_needed() -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=60, hidden_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=24,
        intermediate_size=100, initializer_range=0.1,
    )  # fmt: skip
    model = transformers.Qwen3Model(config).double().eval()
    stock = states(model, "right")
    patch(model, release="2026.09")
    # The stock norms round to float32, and a padded row is summed up in another order.
    assert error(states(model, "right"), stock, "right") <= 1e-5


@pytest.mark.parametrize("name", families.ON_DEVICE)
def test_nothing_known_is_left_in_the_layers(name: str) -> None:
    model = families.build(name)
    # The regression of ESM's contact head is no part of an embedding.
    unused = "contact_head"
    assert untreated(model)
    assert [left for left in untreated(patch(model)) if not left.path.startswith(unused)] == []


def _small(width: int) -> dict[str, Any]:
    return {"hidden_size": width, "num_hidden_layers": 1, "intermediate_size": 2 * width}


WHERE_SIZES_ARE_READ: dict[str, tuple[str, dict[str, Any]]] = {
    "blocks of a projection by a stored size": ("CodeGen", {"n_embd": 128, "n_layer": 1, "n_head": 4, "rotary_dim": 8}),
    "keys by a stored size": ("GPTBigCode", {"n_embd": 96, "n_layer": 1, "n_head": 3}),
    "norms over all heads": ("Olmo2", {**_small(64), "num_attention_heads": 4}),
    "a norm without weights": ("Olmo", {**_small(96), "num_attention_heads": 3}),
    "a table of positions with a forward of its own": (
        "OPT", {"hidden_size": 96, "ffn_dim": 96, "num_hidden_layers": 1, "num_attention_heads": 3,
                "word_embed_proj_dim": 96},
    ),
    "attention of an unknown kind": ("OpenAIGPT", {"n_embd": 96, "n_layer": 1, "n_head": 3}),
    "a transform over features": ("FNet", {**_small(96), "intermediate_size": 100}),
}  # fmt: skip


@pytest.mark.parametrize("what", WHERE_SIZES_ARE_READ)
def test_what_padding_would_change_is_left_alone(what: str) -> None:
    """Where zeros at the end would not be zeros to the model, sizes that do not fill sticks stay as they are."""
    import transformers

    stem, sizes = WHERE_SIZES_ARE_READ[what]
    torch.manual_seed(0)
    config = getattr(transformers, f"{stem}Config")(vocab_size=60, **sizes)
    model = getattr(transformers, f"{stem}Model")(config).double().eval()
    batch = {"input_ids": families.batch("right")["input_ids"]}
    with torch.no_grad():
        stock = model(**batch)[0]
        patched = patch(model)(**batch)[0]
    assert patched.shape == stock.shape
    # Norms that round to float32 on the way round other sums.
    assert float((patched - stock).abs().max() / stock.abs().max()) < 1e-6
