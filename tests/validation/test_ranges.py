"""The format a model runs in follows from its measured range; verdicts in bfloat16 are as strict as in float16."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import BertModel

import hf_adapters
from hf_adapters.errors import WeightRangeError
from hf_adapters.validate import ValidationInputError, validate
from hf_adapters.validation import dl16
from hf_adapters.validation.floor import device_format
from hf_adapters.validation.inputs import draw, spec_of
from hf_adapters.validation.ranges import choose, measure
from hf_adapters.validation.runners import Simulated, run_floor, run_reference
from hf_adapters.validation.types import Precision, Validation
from tests.validation import structures
from tests.validation.mutations import NUMERIC


def small() -> nn.Module:
    return structures.build("qwen3")


def large_weights() -> nn.Module:
    """The same function, with weights and values beyond float16."""
    model = small()
    with torch.no_grad():
        for layer in model.layers:  # type: ignore[union-attr]
            layer.mlp.up_proj.weight.mul_(2.0**20)  # type: ignore[union-attr]
            layer.mlp.down_proj.weight.mul_(2.0**-20)  # type: ignore[union-attr]
    return model


def large_residual(dtype: torch.dtype = torch.bfloat16) -> nn.Module:
    """As Gemma: a checkpoint of 16 bits, whose weights fit into float16 and whose residual stream does not."""
    model = small()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(dtype).float())
        model.embed_tokens.weight.mul_(2.0**16)  # type: ignore[union-attr, operator]
        for layer in model.layers:  # type: ignore[union-attr]
            layer.mlp.down_proj.weight.mul_(2.0**16)  # type: ignore[union-attr]
            layer.self_attn.o_proj.weight.mul_(2.0**16)  # type: ignore[union-attr]
    return model


def judged(model: nn.Module, **options: object) -> Validation:
    return validate(model, reference="inline", runner=Simulated(), **options)  # type: ignore[arg-type]


def test_weights_beyond_float16_choose_bfloat16_and_are_accepted() -> None:
    found = judged(large_weights())
    assert found.accepted, found.failed_checks
    assert found.precision is not None
    assert (found.precision.dtype, found.precision.forced) == ("bfloat16", False)
    assert found.precision.largest_weight > 65504
    assert found.precision.largest_weight_at.endswith("mlp.up_proj.weight")
    assert found.precision.largest_weight_at in found.precision.reason
    again = Validation.from_dict(json.loads(found.to_json()))
    assert again.precision == found.precision


def test_values_beyond_float16_choose_bfloat16_although_the_weights_fit() -> None:
    found = judged(large_residual())
    assert found.accepted, found.failed_checks
    assert found.precision is not None
    assert found.precision.dtype == "bfloat16"
    assert found.precision.checkpoint == "bfloat16"
    assert found.precision.rounded_share == 0.0
    assert found.precision.largest_weight < 65504 < found.precision.largest_value
    assert found.precision.largest_value_at.startswith("layers.")


def test_ordinary_models_stay_in_float16_with_figures_of_float16() -> None:
    model = small()
    found = judged(model)
    assert found.precision is not None
    assert (found.precision.dtype, found.precision.checkpoint) == ("float16", "float32")
    assert 0.9 < found.precision.rounded_share <= 1.0
    forced = judged(model, dtype=torch.float16)
    assert (forced.multiple, forced.noise_floor) == (found.multiple, found.noise_floor)


def test_the_caller_can_force_a_format_and_the_record_says_so() -> None:
    found = judged(small(), dtype=torch.bfloat16)
    assert found.accepted, found.failed_checks
    assert found.precision is not None
    assert (found.precision.dtype, found.precision.forced) == ("bfloat16", True)
    assert found.precision.reason.startswith("asked for; by its ranges it would be float16")
    narrow = judged(small())
    assert found.noise_floor is not None
    assert narrow.noise_floor is not None
    assert found.noise_floor > narrow.noise_floor, "bfloat16 keeps fewer bits of the weights"


def test_a_forced_format_that_cannot_hold_the_weights_is_refused() -> None:
    with pytest.raises(WeightRangeError, match=r"layers\.0\.mlp\.up_proj\.weight.*bfloat16"):
        judged(large_weights(), dtype=torch.float16)
    with pytest.raises(ValidationInputError, match="float16 or bfloat16"):
        judged(small(), dtype=torch.float32)


@pytest.mark.parametrize("structure", ["bert", pytest.param("qwen3", marks=pytest.mark.slow)])
def test_wrong_numbers_are_rejected_in_bfloat16(structure: str) -> None:
    model = structures.build(structure)
    concerned = [mutation for mutation in NUMERIC if mutation.concerns(model)]
    assert len(concerned) >= 10
    accepted = [
        mutation.name
        for mutation in concerned[::2]
        if judged(structures.build(structure), patch=mutation, dtype=torch.bfloat16).verdict != "mismatch"
    ]
    assert accepted == []


def test_wrong_numbers_are_rejected_in_a_model_that_needs_bfloat16() -> None:
    model = large_weights()
    mutation = next(mutation for mutation in NUMERIC if mutation.concerns(model))
    found = judged(model, patch=mutation)
    assert found.verdict == "mismatch"
    assert found.precision is not None
    assert found.precision.dtype == "bfloat16"


@pytest.mark.slow
def test_the_process_that_judges_computes_the_floor_of_the_same_format() -> None:
    inline = judged(large_residual())
    other = validate(large_residual(), reference="process", runner=Simulated())
    assert (other.noise_floor, other.multiple, other.precision) == (
        inline.noise_floor,
        inline.multiple,
        inline.precision,
    )


@pytest.mark.slow
@pytest.mark.parametrize("build", [large_weights, large_residual])
def test_large_ranges_run_on_the_device(build: Callable[[], nn.Module]) -> None:
    found = validate(build(), reference="inline")
    assert found.verdict == "adapted", found.failed_checks
    assert found.precision is not None
    assert found.precision.dtype == "bfloat16"
    assert found.runner == "device"


def test_values_beyond_float16_survive_in_the_floor_of_both_formats() -> None:
    model = large_residual()
    batch = [draw(spec_of(model), name="a", lengths=(9, 5), padding="left", seed=0)]
    stock = run_reference(model, batch, "mean").values["a/layers.2"]
    assert float(stock.abs().amax()) > 65504
    for dtype in (torch.float16, torch.bfloat16):
        floor = run_floor(model, batch, "mean", dtype).recording.values["a/layers.2"]
        valid = batch[0].valid
        assert floor.isfinite().all()
        assert float((floor - stock)[valid].norm() / stock[valid].norm()) < 0.05


def test_bfloat16_on_the_host_reaches_the_device_with_its_own_ends() -> None:
    values = torch.tensor([1e6, -3.3e38, 2.0**-20, float("inf")], dtype=torch.bfloat16)
    held = dl16.from_host(values)
    limit = dl16.numerics().dl16_max
    assert held[:3].tolist() == [float(values[0]), -limit, 2.0**-20]
    assert held[3].isnan()
    with device_format():
        hidden = torch.ones(4, dtype=torch.bfloat16) * 2
        assert hidden.dtype == torch.bfloat16
        masked = hidden.masked_fill(torch.tensor([True, False, False, False]), torch.finfo(torch.bfloat16).min)
        assert torch.softmax(masked, -1).float().isfinite().all()


def test_fills_of_masks_are_no_range() -> None:
    class Masking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Identity()

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            scores = torch.full(input_ids.shape, torch.finfo(torch.float32).min)
            return self.inner(scores).clamp(-3.0, 3.0)

    batch = draw(spec_of(small()), name="a", lengths=(5,), padding="none", seed=0)
    ids = {"input_ids": batch.kwargs["input_ids"]}
    assert measure(Masking(), [replace(batch, kwargs=ids)]).value.value == 3.0


def test_a_model_whose_forward_fails_is_left_to_the_attempts() -> None:
    class Failing(nn.Module):
        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("no")

    found = choose(Failing(), [draw(spec_of(small()), name="a", lengths=(5,), padding="none", seed=0)])
    assert found == Precision(
        dtype="float16", forced=False, reason="no range pass, the stock model fails on the CPU: TypeError"
    )


def test_the_pass_leaves_a_model_as_it_was() -> None:
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    choose(model, [draw(spec_of(model), name="a", lengths=(5,), padding="none", seed=0)])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_format_of_a_checkpoint_is_read_from_its_weights(dtype: torch.dtype, tmp_path: Path) -> None:
    from hf_adapters.corpus.references import load_model, resolve

    model = structures.build("bert")
    assert isinstance(model, BertModel)
    model.to(dtype).save_pretrained(tmp_path)
    built = load_model(resolve(str(tmp_path)))
    assert built.weights == "real"
    batch = [draw(spec_of(built.model), name="a", lengths=(9,), padding="none", seed=0)]
    found = choose(built.model, batch)
    assert found.checkpoint == str(dtype).removeprefix("torch.")
    assert found.dtype == "float16"
    # float16 has fewer exponents than bfloat16, so it rounds a few small weights of such a checkpoint.
    limit = {torch.float16: 0.0, torch.bfloat16: 0.01, torch.float32: 1.0}
    assert found.rounded_share <= limit[dtype]
    assert (found.rounded_share > 0.5) == (dtype == torch.float32)


def test_streamed_layers_are_all_measured() -> None:
    from hf_adapters.corpus.streamed import build_streamed
    from tests.validation.test_streaming import QWEN3

    built = build_streamed(QWEN3, seed=0)
    batch = [draw(spec_of(built.model), name="a", lengths=(9,), padding="none", seed=0)]
    ranges = measure(built.model, batch)
    held = sum(parameter.numel() for parameter in built.model.parameters())
    assert ranges.elements > held, "the layers that are not in memory count as well"
    assert 1.0 < ranges.value.value < 65504


def test_compile_chooses_by_the_weights() -> None:
    fits = hf_adapters.compile(structures.build("bert"), dtype="auto")
    beyond = hf_adapters.compile(large_weights(), dtype="auto")
    narrow = hf_adapters.compile(structures.build("bert").to(torch.bfloat16), dtype="auto")
    for model, dtype in ((fits, torch.float16), (beyond, torch.bfloat16), (narrow, torch.bfloat16)):
        assert next(model.parameters()).dtype == dtype
        assert hf_adapters.compile(model, dtype="auto") is model
        hf_adapters.decompile(model)
    with pytest.raises(hf_adapters.InputError, match='"auto"'):
        hf_adapters.compile(fits, dtype="float8")  # type: ignore[arg-type]
