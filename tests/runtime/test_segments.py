"""Limits of a program's tensors: how many and how large (D1.4), in the releases that have them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
import torch
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import fresh_cache

from spyre_backend import capabilities
from spyre_backend.capabilities import Capabilities
from spyre_backend.errors import SpyreUnsupported
from spyre_backend.program import Program, StickLayout, TensorSpec
from spyre_backend.runtime import launch
from spyre_backend.runtime.launch import LoadedProgram
from spyre_backend.runtime.segments import check_segments
from tests.emulator.programs import op, operand, program, spec


def release(**limits: int) -> Capabilities:
    """The current release with other limits."""
    current = capabilities.current()
    return replace(current, limits=replace(current.limits, **limits))


def summing(count: int) -> Program:
    """`y` = the sum of `count - 1` inputs, through temps: `count` external tensors."""
    inputs = [spec(f"x{i}", "input", (64,)) for i in range(count - 1)]
    temps = [spec(f"t{i}", "temp", (64,)) for i in range(count - 3)]
    out = spec("y", "output", (64,))
    ops, total = [], inputs[0]
    for x, target in zip(inputs[1:], [*temps, out], strict=True):
        ops.append(op("add", (64,), (operand(total, (1,)), operand(x, (1,))), operand(target, (1,))))
        total = target
    return program((*inputs, *temps, out), *ops)


def externals(made: Program) -> list[TensorSpec]:
    return [made.tensor(name) for name in made.arguments]


@pytest.mark.parametrize(("count", "limit", "fits"), [(6, 6, True), (7, 6, False), (7, 0, True), (40, 0, True)])
def test_tensors_of_a_program(count: int, limit: int, fits: bool) -> None:
    made = summing(count)
    assert len(made.arguments) == count
    if fits:
        check_segments(made, externals(made), release(external_tensors_max=limit))
        return
    with pytest.raises(SpyreUnsupported, match=r"has 7 tensors that are not intermediates, more than 6") as caught:
        check_segments(made, externals(made), release(external_tensors_max=limit))
    assert caught.value.rule == "external-tensors"
    assert len(caught.value.shapes) == count


def held(sticks: int) -> TensorSpec:
    """A tensor of so many sticks."""
    layout = StickLayout(device_size=(sticks, 64), stride_map=(64, 1), device_dtype="SEN169_FP16", stick_dim=0)
    return replace(spec("w", "input", (sticks * 64,)), layout=layout)


def test_a_tensor_fills_a_segment_at_most() -> None:
    segment = capabilities.current().limits.segment_bytes
    assert segment == 16 << 30
    made = summing(4)
    check_segments(made, [held(segment // 128)], capabilities.current())
    with pytest.raises(SpyreUnsupported, match=f"takes {segment + 128} bytes, a segment holds {segment}") as caught:
        check_segments(made, [held(segment // 128 + 1)], capabilities.current())
    assert caught.value.rule == "segment-size"


def test_a_program_is_refused_before_it_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch.capabilities, "load_as", lambda name, fingerprint: release(external_tensors_max=6))
    LoadedProgram(summing(6))
    with pytest.raises(SpyreUnsupported) as caught:
        LoadedProgram(summing(7))
    assert caught.value.rule == "external-tensors"


@pytest.mark.parametrize("kept", [False, True], ids=["compiled", "from-the-cache"])
def test_compiled_code_with_too_many_tensors_is_refused(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    def total(a, b, c, d, e, f):  # type: ignore[no-untyped-def]
        return a * b + c * d + e * f

    tensors = [torch.full((64,), float(i), dtype=torch.float16, device="spyre") for i in range(6)]
    # What Inductor's cache holds is loaded on another path than what it compiles.
    torch._dynamo.reset()
    with fresh_cache(), monkeypatch.context() as patch:
        if kept:
            torch.compile(total, dynamic=False)(*tensors)
            torch._dynamo.reset()
            PyCodeCache.cache_clear()  # as another process finds it
        patch.setattr(launch, "_by_text", OrderedDict())
        patch.setattr(launch, "_by_digest", OrderedDict())
        patch.setattr(launch.capabilities, "load_as", lambda name, fingerprint: release(external_tensors_max=6))
        with pytest.raises(SpyreUnsupported) as caught:
            torch.compile(total, dynamic=False)(*tensors)
        assert caught.value.rule == "external-tensors"
    torch._dynamo.reset()
    assert torch.compile(total, dynamic=False)(*tensors).cpu().unique().tolist() == [26.0]
