"""What callers may pass and what they get back, on the host and on the device."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

import hf_adapters
from hf_adapters import errors
from hf_adapters._inputs import prepare

from .small_models import TEXT_MODELS, at_tokens, batch, bert, clip_text, cosine, qwen3, roberta

TARGETS = ("cpu", "spyre")


def compiled(model: Any, target: str = "cpu") -> Any:
    return hf_adapters.compile(model, target=target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", TEXT_MODELS)
def test_hidden_states_of_all_lengths(name: str, target: str) -> None:
    stock, model = TEXT_MODELS[name](), compiled(TEXT_MODELS[name](), target)
    for rows, length in ((1, 1), (4, 37)) if target == "cpu" else ((3, 37), (4, 40)):
        inputs = batch(rows, length)
        with torch.no_grad():
            want = stock(**inputs)
        got = model(**inputs)
        assert got.last_hidden_state.shape == want.last_hidden_state.shape
        assert got.last_hidden_state.dtype == torch.float32
        assert got.last_hidden_state.device.type == "cpu"
        assert cosine(at_tokens(got.last_hidden_state, inputs), at_tokens(want.last_hidden_state, inputs)) > 0.999
        assert getattr(got, "past_key_values", None) is None


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("length", [63, 64, 65, 70, 100])
def test_padding_stays_inside_the_position_table(length: int, target: str) -> None:
    ids = batch(1, length)["input_ids"]
    with torch.no_grad():
        want = bert()(input_ids=ids).last_hidden_state
    assert cosine(compiled(bert(), target)(input_ids=ids).last_hidden_state, want) > 0.999


@pytest.mark.parametrize(
    ("given", "bucket"), [((1, 1), (1, 64)), ((3, 64), (4, 64)), ((4, 65), (4, 128)), ((5, 100), (8, 128))]
)
def test_buckets(given: tuple[int, int], bucket: tuple[int, int]) -> None:
    arguments = prepare(bert(), (), dict(batch(*given))).arguments
    assert {name: arguments[name].shape for name in ("input_ids", "attention_mask", "position_ids")} == {
        "input_ids": bucket, "attention_mask": bucket, "position_ids": bucket
    }  # fmt: skip
    assert int(arguments["attention_mask"][: given[0]].sum()) == int(batch(*given)["attention_mask"].sum())


def test_calls_of_one_bucket_share_their_programs() -> None:
    model = compiled(bert(), "spyre")
    model(**batch(3, 37))
    graphs = counters["stats"]["unique_graphs"]
    assert graphs
    model(**batch(4, 9))
    model(**batch(3, 64))
    assert counters["stats"]["unique_graphs"] == graphs
    model(**batch(4, 65))
    assert counters["stats"]["unique_graphs"] > graphs


def test_too_long_inputs_are_refused_before_padding() -> None:
    model = compiled(roberta())
    ids = torch.full((1, 40), 7)
    assert model(input_ids=ids).last_hidden_state.shape == (1, 40, 64)
    with pytest.raises(errors.SequenceTooLongError, match=r"41 tokens.*position_embeddings has room for 40"):
        model(input_ids=torch.full((1, 41), 7))
    padded = torch.full((1, 41), 7)
    padded[0, 30:] = 1
    with torch.no_grad():
        want = roberta()(input_ids=padded).last_hidden_state
    assert cosine(model(input_ids=padded).last_hidden_state, want) > 0.999


def mask_forms() -> dict[str, Tensor]:
    mask = batch()["attention_mask"]
    full = mask.bool()[:, None, None, :].expand(3, 1, 37, 37)
    low = torch.finfo(torch.float32).min
    return {
        "int64": mask,
        "int32": mask.int(),
        "bool": mask.bool(),
        "float32": mask.float(),
        "float64": mask.double(),
        "4d bool": full,
        "4d one query": full[:, :, :1],
        "4d int": full.long(),
        "4d minimum": torch.zeros(3, 1, 37, 37).masked_fill(~full, low),
        "4d -inf": torch.zeros(3, 1, 37, 37).masked_fill(~full, float("-inf")),
    }


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", mask_forms())
def test_mask_forms_agree(form: str, target: str) -> None:
    inputs = batch()
    with torch.no_grad():
        want = bert()(**inputs).last_hidden_state
    got = compiled(bert(), target)(input_ids=inputs["input_ids"], attention_mask=mask_forms()[form]).last_hidden_state
    assert cosine(at_tokens(got, inputs), at_tokens(want, inputs)) > 0.999


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(3, 36), "the input has 3 rows of 37 tokens"),
        (torch.full((3, 37), 0.5), "other values"),
        (torch.ones(3, 37, 37), "must be"),
        (torch.ones(3, 1, 37, 36, dtype=torch.bool), "4-D"),
        (torch.full((3, 1, 37, 37), float("nan")), "NaN"),
    ],
)
def test_masks_that_mean_nothing_are_refused(mask: Tensor, message: str) -> None:
    with pytest.raises(errors.InputError, match=message):
        compiled(bert())(input_ids=batch()["input_ids"], attention_mask=mask)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, errors.InputError, "exactly one"),
        ({"input_ids": torch.zeros(3, dtype=torch.long)}, errors.InputError, r"\[batch, tokens\]"),
        ({"input_ids": torch.zeros(1, 3)}, errors.InputError, "float32"),
        ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, errors.InputError, "no tokens"),
        ({"input_ids": torch.tensor([[5, 90]])}, errors.InputError, "90, outside of the 90 rows"),
        ({"input_ids": torch.tensor([[5, -1]])}, errors.InputError, "-1, outside"),
        ({"input_ids": torch.ones(1, 2).long(), "token_type_ids": torch.tensor([[0, 2]])}, errors.InputError, "2 rows"),
        ({"input_ids": torch.ones(1, 2).long(), "position_ids": torch.tensor([[0, 100]])}, errors.InputError, "100"),
        ({"input_ids": torch.ones(1, 2).long(), "use_cache": True}, errors.UnsupportedOptionError, "use_cache"),
        ({"inputs_embeds": torch.full((1, 2, 64), 7e4)}, errors.InputError, "largest float16"),
    ],
)
def test_bad_input_gets_a_clear_error_and_the_model_still_works(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = compiled(bert(), "spyre")
    with pytest.raises(error, match=message):
        model(**arguments)
    assert model(input_ids=torch.tensor([[5, 6]])).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("target", TARGETS)
def test_an_empty_batch_gives_an_empty_result(target: str) -> None:
    out = compiled(bert(), target)(input_ids=torch.zeros(0, 5, dtype=torch.long))
    assert out.last_hidden_state.shape == (0, 5, 64)
    assert out.pooler_output.shape == (0, 64)


@pytest.mark.parametrize("target", TARGETS)
def test_call_surface_of_the_stock_model(target: str) -> None:
    stock, model, inputs = bert(attn_implementation="eager"), compiled(bert(), target), batch()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with torch.no_grad():
        want = stock(**inputs, output_attentions=True, output_hidden_states=True)
    got = model(ids, mask, output_attentions=True, output_hidden_states=True)
    assert [a.shape for a in got.attentions] == [a.shape for a in want.attentions]
    assert [h.shape for h in got.hidden_states] == [h.shape for h in want.hidden_states]
    keep = mask.bool()
    for a, b in zip(got.attentions, want.attentions, strict=True):
        assert (a - b).transpose(1, 2)[keep].abs().max() < 5e-3
    for a, b in zip(got.hidden_states, want.hidden_states, strict=True):
        assert cosine(a[keep], b[keep]) > 0.999
    assert cosine(got.pooler_output, want.pooler_output) > 0.999
    as_tuple = model.forward(ids, attention_mask=mask, return_dict=False)
    assert isinstance(as_tuple, tuple)
    assert cosine(as_tuple[1], want.pooler_output) > 0.999
    embeds = torch.randn(3, 37, 64, generator=torch.Generator().manual_seed(2))
    positions = torch.arange(37).flip(0)[None]
    with torch.no_grad():
        want = stock(inputs_embeds=embeds, attention_mask=mask, position_ids=positions)
    got = model(inputs_embeds=embeds, attention_mask=mask, position_ids=positions)
    assert cosine(at_tokens(got.last_hidden_state, inputs), at_tokens(want.last_hidden_state, inputs)) > 0.999
    assert pickle.loads(pickle.dumps(got)).last_hidden_state.equal(got.last_hidden_state)


def test_roberta_inputs_embeds_count_positions_from_the_padding_index() -> None:
    embeds = torch.randn(2, 40, 64, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        want = roberta()(inputs_embeds=embeds).last_hidden_state
    assert cosine(compiled(roberta())(inputs_embeds=embeds).last_hidden_state, want) > 0.999


def test_clip_pools_at_the_first_end_token() -> None:
    ids = torch.tensor([[48, 5, 58, 6, 49, 49], [48, 7, 8, 9, 10, 49]])
    with torch.no_grad():
        want = clip_text()(input_ids=ids).pooler_output
    assert cosine(compiled(clip_text())(input_ids=ids).pooler_output, want) > 0.999


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_side_of_decoders(side: str) -> None:
    stock, model = qwen3(), compiled(qwen3(), "spyre")
    ids, mask = torch.zeros(2, 20, dtype=torch.long), torch.zeros(2, 20, dtype=torch.long)
    for row, length in enumerate((7, 20)):
        where = slice(20 - length, 20) if side == "left" else slice(0, length)
        ids[row, where], mask[row, where] = torch.arange(3, 3 + length), 1
    with torch.no_grad():
        want = stock(input_ids=ids, attention_mask=mask).last_hidden_state
    got = model(input_ids=ids, attention_mask=mask).last_hidden_state
    assert cosine(got[mask.bool()], want[mask.bool()]) > 0.999


def test_grad_modes_agree_and_give_ordinary_tensors() -> None:
    model, inputs = compiled(bert(), "spyre"), batch()
    plain = model(**inputs).last_hidden_state
    with torch.inference_mode():
        inside = model(**{k: v.clone() for k, v in inputs.items()}).last_hidden_state
    with torch.no_grad():
        again = model(**inputs).last_hidden_state
    assert torch.equal(plain, inside)
    assert torch.equal(plain, again)
    assert not plain.requires_grad
    assert not inside.is_inference()


def test_strided_and_offset_inputs() -> None:
    model, ids = compiled(bert(), "spyre"), torch.randint(3, 90, (9, 48), generator=torch.Generator().manual_seed(3))
    for view in (ids[2:5], ids[:3, 3:40], ids[1::2][:3], ids[:, ::2]):
        with torch.no_grad():
            want = bert()(input_ids=view.clone()).last_hidden_state
        assert cosine(model(input_ids=view).last_hidden_state, want) > 0.999


class FeedForward(nn.Module):
    """Not a transformers model: no padding, any arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 128)
        self.outer = nn.Linear(128, 64)

    def forward(self, x: Tensor, scale: float = 1.0, extra: dict[str, Tensor] | None = None) -> dict[str, Any]:
        y = self.outer(torch.relu(self.inner(x))) * scale
        if extra is not None:
            y = y + extra["bias"]
        return {"y": y, "pair": (y[0], 3)}


def test_modules_of_any_kind() -> None:
    torch.manual_seed(0)
    stock = FeedForward().eval()
    model = compiled(copy.deepcopy(stock), "spyre")
    x = torch.randn(7, 64, dtype=torch.float64)
    got = model(x, extra={"bias": torch.ones(64)})
    want = stock(x.float(), extra={"bias": torch.ones(64)})
    assert got["y"].dtype == torch.float64
    assert got["y"].shape == (7, 64)
    assert got["pair"][1] == 3
    assert torch.allclose(got["y"].float(), want["y"], atol=2e-2)


class Attention(nn.Module):
    def forward(self, x: Tensor, additive_mask: Tensor) -> Tensor:
        return torch.softmax(x @ x.transpose(-1, -2) + additive_mask, -1) @ x


@pytest.mark.parametrize("hidden", [torch.finfo(torch.float32).min, -1e9, float("-inf")])
def test_additive_masks_of_modules_hide_with_any_number(hidden: float) -> None:
    x = torch.randn(2, 64, 64, generator=torch.Generator().manual_seed(3)) / 3
    mask = torch.zeros(2, 64, 64)
    mask[:, :, 40:] = hidden
    model = compiled(Attention().eval(), "spyre")
    for got in (model(x, mask), model(x, additive_mask=mask)):
        assert cosine(got, Attention()(x, mask)) > 0.999


class Norm(nn.Module):
    """Root-mean-square norm of one's own, then an activation that the device has in half precision only, or has not."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2, 70))
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight)


@pytest.mark.parametrize(
    ("act", "dtype", "tolerance"), [(nn.SiLU(), torch.float32, 1e-5), (nn.Tanh(), torch.float16, 1e-2)]
)
def test_modules_without_matmuls_use_float32_where_the_device_has_it(
    act: nn.Module, dtype: torch.dtype, tolerance: float
) -> None:
    stock = Norm(act).eval()
    model = compiled(copy.deepcopy(stock), "spyre")
    x = torch.randn(4, 6, 70, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        want = stock(x)
    for _ in range(2):
        assert (model(x) - want).abs().max() < tolerance
    assert model.weight.dtype == dtype
    assert torch.equal(hf_adapters.decompile(model)(x), want)


def test_outputs_and_models_survive_saving() -> None:
    model, inputs = compiled(bert(), "spyre"), batch()
    want = model(**inputs).last_hidden_state
    torch.save(model, buffer := io.BytesIO())
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    for again in (loaded, pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(again(**inputs).last_hidden_state, want)
        assert torch.equal(hf_adapters.decompile(again)(**inputs).last_hidden_state, bert()(**inputs).last_hidden_state)
    assert torch.equal(model(**inputs).last_hidden_state, want)
