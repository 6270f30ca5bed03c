"""The independent cycle model: its rules (D7.7), and how far it and the clock agree."""

from __future__ import annotations

import pytest

from spyre_backend.emulator.clock import program_time
from spyre_backend.emulator.cycles import ALIGNED, CycleSettings, program_cycles
from spyre_backend.program import Op, Program
from tests.emulator.clock_programs import matmul, pointwise, read, softmax, sparse, tensor
from tests.emulator.programs import program

OWN = CycleSettings()


def rms_norm(rows: int, width: int) -> Program:
    """x * rsqrt(mean(x * x) + eps) * weight on 32 cores, temporaries in the scratchpads."""
    x, weight, y = (
        tensor("x", "input", (rows, width)),
        tensor("weight", "input", (1, width)),
        tensor("y", "output", (rows, width)),
    )
    square, scaled = (tensor(n, "temp", (rows, width), 0) for n in ("square", "scaled"))
    mean, scale = (sparse(n, "temp", (rows, 1), 0) for n in ("mean", "scale"))
    reduction = Op(
        name="mean",
        dims=(rows, 1, width),
        reduced=1,
        inputs=(read(square, (width, 0, 1)),),
        output=read(mean, (1, 0, 0)),
        split=(32, 1, 1),
    )
    return program(
        (x, weight, y, square, scaled, mean, scale),
        pointwise("square", [x], square, (32, 1)),
        reduction,
        pointwise("rsqrt", [mean], scale, (32, 1)),
        pointwise("mul", [x, scale], scaled, (32, 1)),
        pointwise("mul", [scaled, weight], y, (32, 1)),
    )


def test_rules_of_the_model() -> None:
    """One core's part by hand: 4 x 1024 elements of exp, read and written, 64 a cycle at a quarter of the rate."""
    x, y = tensor("x", "input", (128, 1024)), tensor("y", "output", (128, 1024))
    found = program_cycles(program((x, y), pointwise("exp", [x], y, (32, 1))), OWN)
    (op,) = found.ops
    assert (op.cores, op.compute, op.communication) == (32, 4 * 4 * 1024 / 64, 0)
    assert op.memory == 2 * 4 * 16 * 128 / (128 / 32)
    assert found.cycles == op.compute + op.memory
    assert found.bound == "memory"
    assert found.coverage == 1


def test_matmul_rate_and_ways_to_overlap() -> None:
    case = matmul(512, 512, 512, (8, 4, 1))
    serial, overlapped = program_cycles(case, OWN), program_cycles(case, CycleSettings(overlap="overlapped"))
    (op,) = serial.ops
    assert op.compute == 2 * 512**3 / 32 / 1024
    assert serial.cycles == op.compute + op.memory
    assert overlapped.cycles == max(op.compute, op.memory)


def test_a_divided_reduction_costs_rounds_on_the_ring() -> None:
    assert program_cycles(matmul(64, 64, 4096, (1, 1, 1)), OWN).ops[0].communication == 0
    four = program_cycles(matmul(64, 64, 4096, (1, 1, 4)), OWN).ops[0].communication
    assert four == 3 * 64 * 64 * 2 / 64


def test_scratchpads_are_free() -> None:
    inside, outside = (program_cycles(softmax(512, 1024, resident=r), OWN) for r in (True, False))
    assert inside.ops[2].memory == 0
    assert inside.cycles < outside.cycles / 2


@pytest.mark.parametrize(("rows", "columns"), [(512, 1024), (4096, 2048), (128, 4096)])
def test_agrees_with_the_clock_on_softmax_and_rms_norm(rows: int, columns: int) -> None:
    """Both move the same bytes at 150 GB/s; the clock adds turn-around (up to 43 %) and a measured reduction rate."""
    for case in (
        softmax(rows, columns, resident=True),
        softmax(rows, columns, resident=False),
        rms_norm(rows, columns),
    ):
        ratio = program_cycles(case).us / program_time(case).us
        assert 1 / 1.43 < ratio < 1.5, case.ops[-1].name


@pytest.mark.parametrize(
    ("shape", "split"),
    [((1, 4096, 4096), (1, 32, 1)), ((8, 25600, 4096), (2, 16, 1)), ((512, 4096, 4096), (4, 8, 1)),
     ((4096, 4096, 4096), (8, 4, 1))],
)  # fmt: skip
def test_agrees_with_the_clock_on_matmul_but_for_operands_that_cores_share(
    shape: tuple[int, int, int], split: tuple[int, int, int]
) -> None:
    """The cycle model loads an operand anew on every core that needs it, the clock once for the card (D7.1)."""
    m, n, k = shape
    case = matmul(m, n, k, split)
    again = (m * k * split[1] + k * n * split[0] + m * n) / (m * k + k * n + m * n)
    ratio = program_cycles(case, ALIGNED).us / program_time(case).us
    assert 1 / 1.25 < ratio < 1.25 * again


def test_own_parameters_are_slower_than_aligned_ones() -> None:
    """D7.7: a third less clock, 128 GB/s, half of the systolic rate."""
    case = matmul(4096, 4096, 4096, (8, 4, 1))
    assert 1 < program_cycles(case, OWN).us / program_cycles(case).us < 3
