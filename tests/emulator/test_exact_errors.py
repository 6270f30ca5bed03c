"""Programs that are known to be wrong: each must be refused by the right error, and name the place."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from spyre_backend.emulator.exact import ExactPlan
from spyre_backend.emulator.exact_errors import (
    AddressError,
    CapacityError,
    ExactExecutionError,
    LifetimeError,
    PaddingError,
    SliceError,
    StickError,
    UninitialisedError,
)
from spyre_backend.emulator.fast import Plan
from spyre_backend.errors import SpyreRuntimeError
from spyre_backend.program import Operand, Program, StickLayout
from tests.emulator.exact_programs import chain, matmul, row_sum, run_exact, spec, values, whole
from tests.emulator.programs import op, program


def refused(made: Program, kind: type[ExactExecutionError], **given: torch.Tensor) -> ExactExecutionError:
    """The error of running `made`, which must be exactly of this kind."""
    with pytest.raises(ExactExecutionError) as caught:
        run_exact(made, **given)
    assert type(caught.value) is kind, caught.value
    assert isinstance(caught.value, SpyreRuntimeError)
    assert caught.value.program == "test"
    return caught.value


def test_the_unmutated_programs_run() -> None:
    for made in (chain(), row_sum((5, 100)), matmul(4, 128, 128, (2, 2, 2))):
        run_exact(made)


def test_two_live_residents_overlap() -> None:
    error = refused(chain(u={"lx_address": 128}), LifetimeError)
    assert (error.op, error.function, error.core, error.tensor, error.address) == (1, "exp", 0, "u", 128)


def test_a_resident_may_take_the_place_of_an_input_that_dies() -> None:
    size = (4, 100)
    made = chain(size, op2={"inputs": (whole(spec("u", "temp", size), size),) * 2}, u={"lx_address": 0})
    expected = {t.name: values(t, seed) for seed, t in enumerate(made.tensors) if t.kind != "temp"}
    Plan(made).run(expected)
    assert torch.equal(run_exact(made)["y"], expected["y"])


def test_reuse_in_place_needs_the_same_access() -> None:
    x, y = spec("x", "input", (64, 64)), spec("y", "output", (64, 64))
    t, u = (spec(n, "temp", (64, 64), lx_address=0) for n in ("t", "u"))
    turned = Operand(tensor="t", strides=(1, 64), offset=0, dtype="float16", stick=1)
    made = program(
        (x, dataclasses.replace(t, layout=spec("t", "temp", (64, 64), order=(1, 0)).layout), u, y),
        op("identity", (64, 64), (whole(x, (64, 64)),), whole(t, (64, 64), stick=0)),
        op("exp", (64, 64), (turned,), whole(u, (64, 64))),
        op("neg", (64, 64), (whole(u, (64, 64)),), whole(y, (64, 64))),
    )
    assert refused(made, LifetimeError).op == 1


@pytest.mark.parametrize("address", [1_625_344, 1_625_344 - 128])
def test_a_resident_beyond_what_may_be_planned(address: int) -> None:
    error = refused(chain(u={"lx_address": address}), CapacityError)
    assert (error.tensor, error.op) == ("u", 1)


def test_a_resident_at_a_misaligned_address() -> None:
    assert refused(chain(t={"lx_address": 64}), AddressError).tensor == "t"


@pytest.mark.parametrize(
    "change",
    [
        {"split": (1, 2)},
        {"split": (2, 2)},
        {"split": (4, 1), "core_order": (1,)},
    ],
)
def test_a_core_reads_what_another_one_holds(change: dict[str, Any]) -> None:
    error = refused(chain(op2=change), SliceError)
    assert error.op == 2
    assert error.core is not None or "slices" in error.detail


def test_cores_in_another_order_hold_other_rows() -> None:
    size = (4, 128)
    both = {"split": (2, 2), "core_order": (0, 1)}
    run_exact(chain(size, op0=both, op1=both, op2=both))
    error = refused(chain(size, op0=both, op1=both, op2={"split": (2, 2), "core_order": (1, 0)}), SliceError)
    assert (error.op, error.core) == (2, 1)


def test_slices_miss_elements() -> None:
    """The core order leaves a divided dim out, so every core works on the first half of it."""
    error = refused(matmul(4, 128, 128, (2, 2, 1), core_order=(0,)), SliceError)
    assert "4 different" not in error.detail
    assert error.op == 0


def test_a_split_beyond_the_cores() -> None:
    assert "33 cores of 32" in refused(chain((33, 100)), SliceError).detail


def test_a_reduced_dim_is_divided() -> None:
    made = row_sum((4, 128))
    wrong = dataclasses.replace(made, ops=(dataclasses.replace(made.ops[0], split=(1, 2)),))
    assert "divides a reduced dim" in refused(wrong, SliceError).detail


def test_a_matmul_result_stays_on_the_core_of_the_first_part_of_k() -> None:
    made = matmul(4, 128, 128, (1, 2, 2))
    c, y = spec("c", "temp", (4, 128), lx_address=0), spec("y", "output", (4, 128))
    reader = op("neg", (4, 128), (whole(c, (4, 128)),), whole(y, (4, 128)))
    tensors = (*made.tensors[:2], c, y)
    reader = dataclasses.replace(reader, split=(1, 2), core_order=(1, 0))
    assert refused(program(tensors, made.ops[0], reader), SliceError).core == 1
    right = dataclasses.replace(made.ops[0], core_order=(1, 2, 0))
    run_exact(program(tensors, right, reader))


def relayout(copies: int) -> Program:
    """`y = exp(x)` on one core for each row; with copies the next operation is undivided on each of the cores."""
    size = (4, 128)
    x, y = spec("x", "input", size), spec("y", "output", size)
    t, u = spec("t", "temp", size, lx_address=0), spec("u", "temp", size, lx_address=4096)
    made = op("exp", size, (whole(x, size),), whole(t, size))
    wide = (copies, *size)
    source, target = (Operand(tensor=n, strides=(0, 128, 1), offset=0, dtype="float16", stick=2) for n in ("t", "u"))
    moved = op("LxRelayout", wide, (source,), target)
    last = op("neg", size, (whole(u, size),), whole(y, size))
    return program(
        (x, t, u, y),
        dataclasses.replace(made, split=(4, 1)),
        dataclasses.replace(moved, split=(copies, 1, 1) if copies > 1 else (1, 2, 2)),
        dataclasses.replace(last, split=(1, 1) if copies > 1 else (2, 2)),
    )


def test_a_relayout_brings_what_other_cores_hold() -> None:
    for copies in (1, 4):
        made = relayout(copies)
        tensors = {t.name: values(t, seed) for seed, t in enumerate(made.tensors) if t.kind != "temp"}
        Plan(made).run(tensors)
        assert torch.equal(run_exact(made)["y"], tensors["y"])


def test_a_relayout_does_not_serve_cores_that_it_does_not_name() -> None:
    made = relayout(2)
    last = dataclasses.replace(made.ops[2], split=(4, 1))
    error = refused(dataclasses.replace(made, ops=(*made.ops[:2], last)), SliceError)
    assert (error.op, error.core) == (2, 2)


def test_a_reduction_reads_padding() -> None:
    """Row 0 of 100 elements read as 128: the fast executor sees the beginning of row 1, the card garbage."""
    made = row_sum((5, 100), dims=(3, 128))
    tensors = {t.name: values(t) for t in made.tensors}
    Plan(made).run(tensors)
    error = refused(made, PaddingError)
    assert (error.op, error.core, error.tensor, error.address) == (0, 0, "x", 5 * 128 + 36 * 2)


def test_zero_padding_may_be_read() -> None:
    made = row_sum((5, 100), dims=(4, 128), padding="zero")
    x = values(made.tensors[0])
    got = run_exact(made, x=x)["y"][:4]
    expected = run_exact(row_sum((5, 100)), x=x)["y"][:4]
    assert torch.equal(got, expected)


def test_a_reduction_takes_whole_sticks_in() -> None:
    error = refused(row_sum((5, 100), mask=None), PaddingError)
    assert (error.op, error.core, error.tensor) == (0, 0, "x")
    assert "28 lanes of garbage" in error.detail
    x = values(row_sum((5, 100)).tensors[0])
    zeros = run_exact(row_sum((5, 100), mask=None, padding="zero"), x=x)
    assert torch.equal(zeros["y"], run_exact(row_sum((5, 100)), x=x)["y"])
    assert "27 lanes are masked, 28" in refused(row_sum((5, 100), mask=27), PaddingError).detail
    made = row_sum((5, 100), mask=None, padding="zero")
    made = dataclasses.replace(made, ops=(dataclasses.replace(made.ops[0], name="max"),))
    assert "max takes in 28 lanes" in refused(made, PaddingError).detail


def test_padding_said_to_be_zero_must_become_zero() -> None:
    """exp(0) is 1, and what garbage makes is garbage; the negative of zero is zero."""
    zero = {"padding": "zero"}
    run_exact(chain(x=zero, t=zero))
    error = refused(chain(x=zero, t=zero, u=zero), PaddingError)
    assert (error.op, error.core, error.tensor) == (1, 0, "u")
    assert refused(chain(t=zero), PaddingError).tensor == "t"


def test_padding_is_never_written() -> None:
    size = (4, 100)
    y = Operand(tensor="y", strides=(100, 1), offset=0, dtype="float16", stick=1)
    made = program(
        (spec("x", "input", (4, 128)), spec("y", "inout", size)),
        op("neg", (3, 128), (whole(spec("x", "input", (4, 128)), (4, 128)),), y),
    )
    assert refused(made, PaddingError).tensor == "y"


def test_an_access_splits_a_stick() -> None:
    x, y = spec("x", "input", (4, 128)), spec("y", "output", (8, 64))
    half = Operand(tensor="x", strides=(64, 1), offset=0, dtype="float16", stick=1)
    run_exact(program((x, y), op("neg", (8, 64), (half,), whole(y, (8, 64)))))
    y = spec("y", "output", (16, 32))
    split = Operand(tensor="x", strides=(32, 1), offset=0, dtype="float16", stick=1)
    error = refused(program((x, y), op("neg", (16, 32), (split,), whole(y, (16, 32)))), StickError)
    assert (error.tensor, error.address) == ("x", 64)


def test_operands_along_different_sticks() -> None:
    x, z, y = (spec(n, k, (64, 64)) for n, k in (("x", "input"), ("z", "input"), ("y", "output")))
    turned = Operand(tensor="z", strides=(1, 64), offset=0, dtype="float16", stick=0)
    made = program((x, z, y), op("add", (64, 64), (whole(x, (64, 64)), turned), whole(y, (64, 64))))
    assert refused(made, StickError).tensor == "z"
    swapped = Operand(tensor="a", strides=(1, 0, 64), offset=0, dtype="float16", stick=0)
    wrong = matmul(64, 64, 64, (1, 1, 1))
    wrong = dataclasses.replace(
        wrong, ops=(dataclasses.replace(wrong.ops[0], inputs=(swapped, wrong.ops[0].inputs[1])),)
    )
    assert refused(wrong, StickError).tensor == "a"


@pytest.mark.parametrize(
    "layout",
    [
        {"stride_map": (64, 101, 1)},
        {"stride_map": (64, 100, 2)},
        {"stride_map": (32, 100, 1)},
        {"stride_map": (100, 64, 1)},
        {"device_size": (1, 4, 64)},
        {"device_size": (2, 3, 64)},
        {"device_size": (2, 4, 32)},
        {"device_dtype": "IEEE_FP32"},
        {"stick_dim": 0},
    ],
)
@pytest.mark.parametrize("tensor", ["x", "t", "y"])
def test_a_layout_that_does_not_address_its_tensor(tensor: str, layout: dict[str, Any]) -> None:
    good = chain().tensor(tensor).layout
    error = refused(chain(**{tensor: {"layout": dataclasses.replace(good, **layout)}}), AddressError)
    assert error.tensor == tensor


def test_another_layout_of_the_same_elements_is_no_error() -> None:
    turned = StickLayout(device_size=(1, 100, 64), stride_map=(6400, 1, 100), device_dtype="SEN169_FP16", stick_dim=0)
    error = refused(chain(x={"layout": turned}), StickError)
    assert error.tensor == "x"


def offsets(t: int, u: int, v: int) -> Program:
    """Three temporaries in device memory: t lives to the last operation, v begins when u has died."""
    size = (4, 100)
    x, y = spec("x", "input", size), spec("y", "output", size)
    temps = [spec(n, "temp", size, hbm_offset=o) for n, o in (("t", t), ("u", u), ("v", v))]
    names = [whole(s, size) for s in (x, *temps, y)]
    return program(
        (x, *temps, y),
        op("neg", size, (names[0],), names[1]),
        op("exp", size, (names[1],), names[2]),
        op("mul", size, (names[2], names[2]), names[3]),
        op("add", size, (names[3], names[1]), names[4]),
    )


def test_temporaries_whose_lives_do_not_meet_share_bytes() -> None:
    expected = run_exact(offsets(0, 1024, 2048))["y"]
    assert torch.equal(run_exact(offsets(0, 1024, 1024))["y"], expected)


@pytest.mark.parametrize("v", [0, 896])
def test_bytes_are_given_away_while_they_are_needed(v: int) -> None:
    error = refused(offsets(0, 1024, v), LifetimeError)
    assert (error.op, error.tensor) == (2, "v")
    assert "'t'" in error.detail


def test_an_address_is_left_symbolic() -> None:
    made = offsets(0, 1024, 2048)
    tensors = tuple(dataclasses.replace(s, hbm_offset=None) if s.name == "u" else s for s in made.tensors)
    assert refused(dataclasses.replace(made, tensors=tensors), AddressError).tensor == "u"
    tensors = tuple(dataclasses.replace(s, hbm_offset=100) if s.name == "u" else s for s in made.tensors)
    assert refused(dataclasses.replace(made, tensors=tensors), AddressError).address == 100


def test_a_temporary_has_one_address() -> None:
    assert refused(chain(t={"lx_address": None}), AddressError).tensor == "t"
    assert refused(chain(t={"hbm_offset": 0}), AddressError).tensor == "t"


def test_the_address_of_an_argument_was_never_set() -> None:
    made = chain()
    with pytest.raises(AddressError) as caught:
        ExactPlan(made).run({"y": torch.zeros(400)})
    assert caught.value.tensor == "x"


def test_a_temporary_is_read_before_anything_wrote_it() -> None:
    made = chain()
    assert refused(dataclasses.replace(made, ops=made.ops[1:]), UninitialisedError).tensor == "t"
    made = offsets(0, 1024, 2048)
    error = refused(dataclasses.replace(made, ops=made.ops[1:]), UninitialisedError)
    assert (error.op, error.tensor, error.address) == (0, "t", 0)


def test_an_output_is_left_unwritten() -> None:
    half = {"dims": (2, 100), "split": (1, 1)}
    assert refused(chain(op0=half, op1=half, op2=half), UninitialisedError).tensor == "y"


def test_part_of_a_temporary_is_read_unwritten() -> None:
    made = offsets(0, 1024, 2048)
    first = dataclasses.replace(made.ops[0], dims=(4, 90))
    error = refused(dataclasses.replace(made, ops=(first, *made.ops[1:])), UninitialisedError)
    assert (error.op, error.tensor) == (1, "t")
    assert "lane 26" in error.detail


def test_a_resident_is_no_place_for_restickify_or_indirect_access() -> None:
    assert refused(chain(op1={"name": "ReStickifyOpHBM"}), AddressError).op == 1


def test_a_tile_that_cannot_be_made_small_enough() -> None:
    """A row of 2^20 fp16 elements cannot be sorted within 2 MB: topk needs it whole."""
    size = (1, 2**20)
    x, y = spec("x", "input", size), spec("y", "output", (1, 4))
    made = op("topkvalue", size, (whole(x, size),), whole(y, size), 1, k=4)
    error = refused(program((x, y), made), CapacityError)
    assert error.core == 0


def test_an_index_outside_its_table() -> None:
    made = gather(index_extent=7)
    for bad in (-1, 7):
        index = torch.tensor([0, 3, bad, 6, 2])
        error = refused(made, AddressError, i=index)
        assert error.tensor == "t"
        assert f"index {bad} " in error.detail


def gather(index_extent: int) -> Program:
    """`y = t[i]` for five rows of 100."""
    t, i, y = spec("t", "input", (7, 100)), spec("i", "input", (5,), "int64"), spec("y", "output", (5, 100))
    table = Operand(tensor="t", strides=(0, 1), offset=0, dtype="float16", stick=1)
    index = Operand(tensor="i", strides=(1, 0), offset=0, dtype="int64", stick=0)
    attrs = {"index_stride": 100, "index_extent": index_extent}
    return program((t, i, y), op("gather", (5, 100), (table, index), whole(y, (5, 100)), **attrs))


def test_errors_print_the_place() -> None:
    text = str(refused(chain(u={"lx_address": 128}), LifetimeError))
    assert text.startswith("program 'test', op 1 (exp), core 0, tensor 'u', address 0x80: ")
