"""Models that cannot be run as they are: said clearly, before anything is half done; and models that only look odd."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import hf_adapters
from hf_adapters import errors
from hf_adapters._execution import compiled_state
from spyre_backend.errors import SpyreUnsupported

from . import removed_model
from .small_models import COMMON, at_tokens, batch, bert, cosine, seeded


def untouched(model: nn.Module, cls: type) -> bool:
    return type(model) is cls and not any("_hf_adapters" in name for m in model.modules() for name in vars(m))


class Packed(nn.Module):
    """As GPTQ keeps a weight: integers, several in one."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("qweight", torch.zeros(8, 64, dtype=torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        return x


def test_quantised_weights_are_refused_and_reported() -> None:
    model = bert()
    model.encoder.layer[1].output.dense = Packed()
    with pytest.raises(errors.ModelTypeError, match=r"encoder\.layer\.1\.output\.dense.*quantised"):
        hf_adapters.compile(model)
    assert untouched(model, hf.BertModel)
    left = hf_adapters.patch_report(hf_adapters.patch(model)).left
    assert ("encoder.layer.1.output.dense", "dtype-unsupported") in {(item.path, item.rule) for item in left}


def test_models_without_values_are_refused() -> None:
    with torch.device("meta"):
        model = hf.BertModel(hf.BertConfig(**COMMON, num_hidden_layers=1, num_attention_heads=1)).eval()
    with pytest.raises(errors.ModelTypeError, match="meta device"):
        hf_adapters.compile(model)
    assert untouched(model, hf.BertModel)


def test_compiled_by_others_is_refused() -> None:
    with pytest.raises(errors.ModelTypeError, match="_orig_mod"):
        hf_adapters.compile(torch.compile(bert()))


def test_a_model_that_is_on_the_device_already() -> None:
    model = bert().half().to("spyre")
    where = model.encoder.layer[0].output.dense.weight
    with pytest.raises(errors.SequenceTooLongError):
        hf_adapters.compile(model)(input_ids=torch.full((1, 101), 5))
    hf_adapters.decompile(model)
    assert untouched(model, hf.BertModel)
    assert model.encoder.layer[0].output.dense.weight is where


def test_encoder_decoders_are_told_to_give_their_encoder() -> None:
    config = hf.T5Config(vocab_size=90, d_model=64, d_kv=64, num_heads=1, d_ff=64, num_layers=1)
    model, ids = hf.T5Model(config).eval(), torch.arange(3, 9)[None]
    with torch.no_grad():
        want = model.encoder(input_ids=ids).last_hidden_state
    hf_adapters.compile(model, target="cpu")
    with pytest.raises(errors.InputError, match=r"needs decoder inputs.*get_encoder"):
        model(input_ids=ids)
    with pytest.raises(errors.UnsupportedOptionError, match="get_encoder"):
        model(input_ids=ids, decoder_input_ids=ids)
    assert untouched(hf_adapters.decompile(model), hf.T5Model)
    encoder = hf_adapters.compile(model.get_encoder(), target="cpu")
    assert cosine(encoder(input_ids=ids).last_hidden_state, want) > 0.999


class MeanOfAll(hf.BertModel):
    """A forward of one's own, whose mean also takes in what is padded."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return super().forward(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state.mean(dim=1)


class LastOfAll(hf.BertModel):
    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Any:
        states = super().forward(input_ids=input_ids, attention_mask=attention_mask, **kwargs)
        return {"embedding": states.last_hidden_state[:, -1]}


class Masked(hf.BertModel):
    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor]:
        states = super().forward(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask[..., None].to(states.dtype)
        return ((states * weights).sum(1) / weights.sum(1),)


@pytest.mark.parametrize(("cls", "padding"), [(MeanOfAll, "never"), (LastOfAll, "never"), (Masked, "free")])
def test_subclasses_with_a_forward_of_their_own(cls: type, padding: str) -> None:
    config = hf.BertConfig(**COMMON, num_hidden_layers=2, num_attention_heads=1)
    stock, inputs = seeded(cls(config)), batch()
    model = hf_adapters.compile(seeded(cls(config)), target="cpu")
    with torch.no_grad():
        want = stock(**inputs)
    got = model(**inputs)
    assert compiled_state(model).padding == padding
    assert type(got) is type(want)
    pairs = [(got, want)] if isinstance(want, Tensor) else [(g, want[k]) for k, g in _items(got)]
    assert all(cosine(a, b) > 0.999 for a, b in pairs)


def _items(value: Any) -> Any:
    return value.items() if isinstance(value, dict) else enumerate(value)


def test_tokens_that_meet_outside_of_attention_are_never_padded() -> None:
    config = hf.FNetConfig(vocab_size=90, hidden_size=64, num_hidden_layers=2, intermediate_size=64)
    ids = batch(2, 37)["input_ids"]
    with torch.no_grad():
        want = seeded(hf.FNetModel(config))(input_ids=ids).last_hidden_state
    model = hf_adapters.compile(seeded(hf.FNetModel(config)), target="cpu")
    assert compiled_state(model).padding == "never"
    assert cosine(model(input_ids=ids).last_hidden_state, want) > 0.999


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_frequencies_that_depend_on_the_length_see_the_callers_length(scaling: str) -> None:
    rope: dict[str, Any] = {"rope_type": scaling, "rope_theta": 1e4, "factor": 4.0}
    if scaling == "longrope":
        factors = {"short_factor": [1.0] * 32, "long_factor": [8.0] * 32}
        rope = {**rope, **factors, "original_max_position_embeddings": 40}
    config = hf.LlamaConfig(
        **COMMON, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=40, rope_parameters=rope
    )
    stock, model = seeded(hf.LlamaModel(config)), hf_adapters.compile(seeded(hf.LlamaModel(config)), target="cpu")
    for length in (37, 70, 37):
        inputs = batch(2, length)
        with torch.no_grad():
            want = stock(**inputs).last_hidden_state
        got = model(**inputs).last_hidden_state
        assert cosine(at_tokens(got, inputs), at_tokens(want, inputs)) > 0.9999


@pytest.mark.parametrize("heads", [1, 2])
def test_a_class_that_transformers_removed(heads: int) -> None:
    """A copy of it: known by what it does, since nothing of its name is there."""
    config = hf.BertConfig(**COMMON, num_hidden_layers=1, num_attention_heads=heads, max_position_embeddings=100)
    model = seeded(removed_model.RetriBertModel(config))
    assert removed_model.OLD_MODULE not in sys.modules
    inputs = batch()
    with torch.no_grad():
        want = model(**inputs)
    report = str(hf_adapters.patch_report(hf_adapters.patch(model)))
    assert "layer.0.output_norm: LayerNorm" in report
    assert untouched(hf_adapters.unpatch(model), removed_model.RetriBertModel)
    hf_adapters.compile(model)
    if heads == 1:
        assert cosine(at_tokens(model(**inputs), inputs), at_tokens(want, inputs)) > 0.999
    else:
        with pytest.raises(SpyreUnsupported, match="pieces of 32") as refused:
            model(**inputs)
        assert refused.value.rule == "view-stick-split"
    assert untouched(hf_adapters.decompile(model), removed_model.RetriBertModel)
    with torch.no_grad():
        assert torch.equal(model(**inputs), want)


def big_bird(size: int, random_blocks: int = 1) -> Any:
    config = hf.BigBirdConfig(
        **COMMON, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=640, block_size=size,
        num_random_blocks=random_blocks,
    )  # fmt: skip
    return seeded(hf.BigBirdModel(config))


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    ("target", "random_blocks", "length"),
    [("cpu", 1, 449), ("cpu", 2, 600), pytest.param("spyre", 1, 500, marks=pytest.mark.slow)],
)
def test_attention_by_blocks(target: str, random_blocks: int, length: int, side: str) -> None:
    """BigBird beyond its few blocks: the first one counts again for each random block, and padding ends in the last."""
    inputs = batch(2, length)
    if side == "left":
        inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    with torch.no_grad():
        want = big_bird(64, random_blocks)(**inputs).last_hidden_state
    model = hf_adapters.compile(big_bird(64, random_blocks), target=target)
    got = model(**inputs).last_hidden_state
    assert model.attention_type == "block_sparse"
    assert cosine(at_tokens(got, inputs), at_tokens(want, inputs)) > 0.999
    with pytest.raises(NotImplementedError, match="weights by block"):
        model(**inputs, output_attentions=True)
    with torch.no_grad():
        assert torch.equal(hf_adapters.decompile(model)(**inputs).last_hidden_state, want)


@pytest.mark.parametrize("target", ["cpu", "spyre"])
def test_blocks_that_padding_would_add_are_refused(target: str) -> None:
    """BigBird attends to all tokens up to seven blocks here; padded to 128 it would count eight."""
    model, inputs = big_bird(16), batch(2, 105)
    with torch.no_grad():
        want = big_bird(16)(**inputs).last_hidden_state
    hf_adapters.compile(model, target=target)
    for length in (129, 200):
        with pytest.raises(errors.UnsupportedOptionError, match=f"beyond 112.* {length}\\..*original_full"):
            model(**batch(2, length))
    assert cosine(at_tokens(model(**inputs).last_hidden_state, inputs), at_tokens(want, inputs)) > 0.999
    hf_adapters.decompile(model).set_attention_type("original_full")
    got = hf_adapters.compile(model, target=target)(**batch(2, 200)).last_hidden_state
    with torch.no_grad():
        want = hf_adapters.decompile(model)(**batch(2, 200)).last_hidden_state
    assert cosine(at_tokens(got, batch(2, 200)), at_tokens(want, batch(2, 200))) > 0.999


@pytest.mark.parametrize("chosen", ["none", "several"])
def test_tokens_that_see_and_are_seen_by_all(chosen: str) -> None:
    """Longformer: the others see a window, over the chunks of the stock layer; padding is never global."""
    config = hf.LongformerConfig(
        **COMMON, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=260, attention_window=16,
        pad_token_id=1,
    )  # fmt: skip
    model, inputs = seeded(hf.LongformerModel(config)), batch(2, 37)
    inputs["global_attention_mask"] = torch.zeros(2, 37, dtype=torch.long)
    inputs["global_attention_mask"][:, 0] = 1
    inputs["global_attention_mask"][0, 20:23] = 1
    if chosen == "none":
        del inputs["global_attention_mask"]
    with torch.no_grad():
        want = model(**inputs).last_hidden_state
    got = hf_adapters.compile(model)(**inputs).last_hidden_state
    assert cosine(at_tokens(got, inputs), at_tokens(want, inputs)) > 0.999


def test_positions_counted_over_the_mask() -> None:
    config = hf.OPTConfig(
        vocab_size=90, hidden_size=64, ffn_dim=64, num_hidden_layers=1, num_attention_heads=1,
        max_position_embeddings=40, word_embed_proj_dim=64,
    )  # fmt: skip
    inputs = batch(2, 40)
    inputs["attention_mask"] = inputs["attention_mask"].flip(1)
    with torch.no_grad():
        want = seeded(hf.OPTModel(config))(**inputs).last_hidden_state
    got = hf_adapters.compile(seeded(hf.OPTModel(config)), target="cpu")(**inputs).last_hidden_state
    assert cosine(at_tokens(got, inputs), at_tokens(want, inputs)) > 0.999


@pytest.mark.parametrize("kept", [1, 5, 0, torch.tensor([3, 36])])
def test_logits_are_kept_from_the_callers_end(kept: int | Tensor) -> None:
    config = hf.Qwen3Config(
        **COMMON, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1, head_dim=64
    )  # fmt: skip
    ids = batch(2, 37)["input_ids"]
    with torch.no_grad():
        want = seeded(hf.Qwen3ForCausalLM(config))(input_ids=ids, logits_to_keep=kept).logits
    got = hf_adapters.compile(seeded(hf.Qwen3ForCausalLM(config)), target="cpu")(input_ids=ids, logits_to_keep=kept)
    assert got.logits.shape == want.shape
    assert cosine(got.logits, want) > 0.999


def test_masks_for_each_kind_of_layer() -> None:
    sizes = {**COMMON, "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 64}
    config = hf.Gemma3TextConfig(**sizes, sliding_window=8, layer_types=["sliding_attention", "full_attention"])
    steps = torch.arange(37)
    causal = (steps[:, None] >= steps).expand(2, 1, 37, 37)
    masks = {"full_attention": causal, "sliding_attention": causal & (steps[:, None] - steps < 8)}
    ids = batch(2, 37)["input_ids"]
    with torch.no_grad():
        want = seeded(hf.Gemma3TextModel(config))(input_ids=ids).last_hidden_state
    model = hf_adapters.compile(seeded(hf.Gemma3TextModel(config)), target="cpu")
    assert cosine(model(input_ids=ids, attention_mask=masks).last_hidden_state, want) > 0.999
    with pytest.raises(errors.InputError, match="full_attention"):
        model(input_ids=ids, attention_mask={**masks, "full_attention": torch.ones(2, 37)})


def test_a_model_whose_table_of_words_nobody_knows_is_refused_by_the_device() -> None:
    """CANINE looks characters up in several hashed tables, and transformers cannot name one of them."""
    config = hf.CanineConfig(**COMMON, num_hidden_layers=1, num_attention_heads=1, num_hash_buckets=128)
    model = seeded(hf.CanineModel(config))
    with pytest.raises(NotImplementedError):
        model.get_input_embeddings()
    with pytest.raises(SpyreUnsupported) as caught:
        hf_adapters.compile(model)(**batch())
    assert caught.value.op.startswith("aten.remainder")


def test_one_score_for_each_row_on_the_device() -> None:
    config = hf.BertConfig(**COMMON, num_hidden_layers=1, num_attention_heads=1, num_labels=1)
    stock, inputs = seeded(hf.BertForSequenceClassification(config)), batch()
    with torch.no_grad():
        want = stock(**inputs).logits
    got = hf_adapters.compile(seeded(hf.BertForSequenceClassification(config)))(**inputs).logits
    assert got.shape == (3, 1)
    assert (got - want).abs().max() < 0.02


def test_pickles_hold_host_tensors_only() -> None:
    from multiprocessing.reduction import ForkingPickler

    model = hf_adapters.compile(bert(), dtype=torch.bfloat16)
    twin = pickle.loads(bytes(ForkingPickler.dumps(model)))
    assert compiled_state(twin).options == compiled_state(model).options
    assert twin.embeddings.word_embeddings.weight.device.type == "spyre"
    assert untouched(hf_adapters.decompile(twin), hf.BertModel)
    assert torch.equal(twin.embeddings.word_embeddings.weight, bert().embeddings.word_embeddings.weight)


@pytest.mark.parametrize("name", ["narrow table", "partial rotation", "classifier on a decoder"])
def test_sizes_that_meet_by_chance(name: str) -> None:
    small: dict[str, Any] = {**COMMON, "num_hidden_layers": 1, "num_attention_heads": 1, "pad_token_id": 0}
    if name == "narrow table":  # 32 padded is as wide as the states
        model: nn.Module = seeded(hf.ElectraModel(hf.ElectraConfig(**small, embedding_size=32)))
    elif name == "partial rotation":  # the tables of half a head fill a stick
        part = {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5}
        wide = {**small, "hidden_size": 128, "num_key_value_heads": 1, "bos_token_id": 1, "eos_token_id": 2}
        model = seeded(hf.Phi3Model(hf.Phi3Config(**wide, rope_parameters=part)))
    else:  # one score for each row
        model = seeded(hf.Qwen2ForSequenceClassification(hf.Qwen2Config(**small, num_key_value_heads=1, num_labels=1)))
    inputs = batch()
    with torch.no_grad():
        stock = model(**inputs)[0]
        found = hf_adapters.compile(model)(**inputs)[0]
    assert found.shape == stock.shape
    tokens = inputs["attention_mask"].bool()
    stock, found = (t[tokens] if t.dim() == 3 else t.T for t in (stock, found))
    assert cosine(found, stock) > 0.999
