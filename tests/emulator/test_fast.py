"""The executor around the operations: temps, overlaps, empty tensors, malformed programs, matmul slabs."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from spyre_backend.capabilities import load
from spyre_backend.emulator import Plan, execute
from spyre_backend.emulator import matmul as matmul_module
from spyre_backend.emulator.numerics import dl16_round
from spyre_backend.program import Operand
from tests.emulator.programs import op, operand, program, spec


def matmul(mode: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A @ B under an accumulation mode."""
    rows, length, columns = a.shape[0], a.shape[1], b.shape[1]
    sa, sb, sc = (
        spec("a", "input", (rows, length)),
        spec("b", "input", (length, columns)),
        spec("c", "output", (rows, columns)),
    )
    made = program(
        (sa, sb, sc),
        op(
            "batchmatmul",
            (rows, columns, length),
            (operand(sa, (length, 0, 1)), operand(sb, (0, 1, columns))),
            operand(sc, (columns, 1, 0)),
            1,
        ),
    )
    tensors = {"a": a.flatten(), "b": b.flatten(), "c": torch.zeros(rows * columns)}
    Plan(made, dataclasses.replace(load("2026.07").numerics, matmul_accumulation=mode)).run(tensors)
    return tensors["c"].view(rows, columns)


def test_matmul_accumulation_modes_lose_more_the_more_often_they_round() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (dl16_round(torch.rand(size, generator=generator)) for size in ((8, 1024), (1024, 8)))
    exact = a.double() @ b.double()
    errors = [float((matmul(mode, a, b).double() - exact).abs().mean()) for mode in ("fp32", "blocked", "sequential")]
    assert errors[0] < errors[1] < errors[2]


@pytest.mark.parametrize("vocabulary", [151_936, 262_144])
def test_a_product_over_a_vocabulary_keeps_growing(vocabulary: int) -> None:
    """As sums do (D6.5): added one after another, equal partial sums of 64 terms stop growing at 1024 of them."""
    got = matmul("blocked", torch.ones(2, vocabulary), torch.ones(vocabulary, 3))
    assert got.unique().tolist() == [float(dl16_round(torch.tensor(float(vocabulary))))]


@pytest.mark.parametrize("length", [320, 64 * 70])
def test_matmul_slabs_agree_with_one_piece(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(1)
    a, b = (torch.randint(-8, 9, size, generator=generator) / 8 for size in ((37, length), (length, 29)))
    whole = matmul("blocked", a, b)
    monkeypatch.setattr(matmul_module, "_PARTIAL_ELEMENTS", 1)
    for rows, elements in ((1, 1), (5, 40), (37, 37), (8, 8 * 29), (64, 4096)):
        monkeypatch.setattr(matmul_module, "_TILE_ROWS", rows)
        monkeypatch.setattr(matmul_module, "_TILE_ELEMENTS", elements)
        assert torch.equal(matmul("blocked", a, b), whole)


def test_autocast_of_the_caller_does_not_reach_into_the_device() -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = (dl16_round(torch.randn(size, generator=generator)) for size in ((16, 256), (256, 16)))
    expected = matmul("blocked", a, b)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(matmul("blocked", a, b), expected)
        assert (a @ b).dtype is torch.bfloat16


def test_matmul_refuses_fp32() -> None:
    sa, sc = spec("a", "input", (2, 64), "float32"), spec("c", "output", (2, 2), "float32")
    with pytest.raises(RuntimeError, match="16-bit floats only"):
        execute(
            program(
                (sa, sc),
                op(
                    "batchmatmul",
                    (2, 2, 64),
                    (operand(sa, (64, 0, 1)), operand(sa, (0, 64, 1))),
                    operand(sc, (2, 1, 0)),
                    1,
                ),
            ),
            {"a": torch.zeros(128), "c": torch.zeros(4)},
        )


def test_unwritten_parts_of_a_temp_read_as_nan() -> None:
    x, t, y = spec("x", "input", (2,)), spec("t", "temp", (4,)), spec("y", "output", (4,))
    made = program(
        (x, t, y),
        op("identity", (2,), (operand(x, (1,)),), operand(t, (1,))),
        op("identity", (4,), (operand(t, (1,)),), operand(y, (1,))),
    )
    out = torch.zeros(4)
    execute(made, {"x": torch.ones(2), "y": out})
    assert out[:2].tolist() == [1.0, 1.0]
    assert out[2:].isnan().all()


def test_overlapping_copy_within_one_tensor_reads_the_old_values() -> None:
    x = spec("x", "inout", (5,))
    out = torch.arange(5.0)
    execute(program((x,), op("identity", (4,), (operand(x, (1,)),), operand(x, (1,), 1))), {"x": out})
    assert out.tolist() == [0.0, 0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("size", [(0,), (3, 0), (0, 2)])
def test_empty_iteration_spaces_do_nothing(size: tuple[int, ...]) -> None:
    x, y = spec("x", "input", size), spec("y", "output", size)
    steps = tuple(range(len(size), 0, -1))
    out = torch.full((3,), 7.0)
    execute(
        program((x, y), op("exp", size, (operand(x, steps),), operand(y, steps))),
        {"x": torch.zeros(0), "y": out},
    )
    assert out.tolist() == [7.0, 7.0, 7.0]


def test_a_sum_of_nothing_is_zero() -> None:
    x, y = spec("x", "input", (2, 0)), spec("y", "output", (2,))
    out = torch.ones(2)
    execute(
        program((x, y), op("sum", (2, 0), (operand(x, (0, 1)),), operand(y, (1, 0)), 1)),
        {"x": torch.zeros(0), "y": out},
    )
    assert out.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("name", "strides", "offset", "message"),
    [
        ("frobnicate", (1,), 0, "knows no device operation"),
        ("exp", (1, 1), 0, "2 strides for 1 dims"),
        ("exp", (2,), 0, r"reaches elements 0\.\.6 of a tensor of 4"),
        ("exp", (1,), 3, r"reaches elements 3\.\.6 of a tensor of 4"),
        ("exp", (-1,), 3, "walks backwards"),
    ],
)
def test_malformed_operations_are_named(name: str, strides: tuple[int, ...], offset: int, message: str) -> None:
    x, y = spec("x", "input", (4,)), spec("y", "output", (4,))
    made = program((x, y), op(name, (4,), (operand(x, strides, offset),), operand(y, (1,))))
    with pytest.raises(
        RuntimeError,
        match=rf"op 0 \({name} .* from aten\.test\.default in module encoder\.layer\.0 at model\.py:7: .*{message}",
    ):
        execute(made, {"x": torch.zeros(4), "y": torch.zeros(4)})


def test_undeclared_tensors_wrong_dtypes_and_double_writes_are_refused() -> None:
    x, y = spec("x", "input", (4,)), spec("y", "output", (4,))
    stray = Operand(tensor="z", strides=(1,), offset=0, dtype="float16")
    wrong = Operand(tensor="x", strides=(1,), offset=0, dtype="float32")
    for bad, message in ((stray, "'z' is not declared"), (wrong, "says float32, the tensor is float16")):
        with pytest.raises(RuntimeError, match=message):
            Plan(program((x, y), op("exp", (4,), (bad,), operand(y, (1,)))))
    with pytest.raises(RuntimeError, match="written more than once"):
        Plan(program((x, y), op("exp", (4,), (operand(x, (1,)),), operand(y, (0,)))))
    with pytest.raises(RuntimeError, match="no working tensor was given for 'y'"):
        execute(program((x, y), op("exp", (4,), (operand(x, (1,)),), operand(y, (1,)))), {"x": torch.zeros(4)})


def test_reading_what_nothing_wrote_is_named() -> None:
    t, y = spec("t", "temp", (4,)), spec("y", "output", (4,))
    made = program((t, y), op("exp", (4,), (operand(t, (1,)),), operand(y, (1,))))
    with pytest.raises(RuntimeError, match="tensor 't' is read before anything wrote it"):
        execute(made, {"y": torch.zeros(4)})


def snapshot(source_kind: str) -> dict[str, torch.Tensor]:
    """A copy of x, then a write to x, then a read of the copy."""
    x, t, y = spec("x", source_kind, (4,)), spec("t", "temp", (4,)), spec("y", "output", (4,))
    access = {tensor.name: operand(tensor, (1,)) for tensor in (x, t, y)}
    made = program(
        (x, t, y),
        op("identity", (4,), (access["x"],), access["t"]),
        op("add", (4,), (access["x"], access["x"]), access["x"]),
        op("identity", (4,), (access["t"],), access["y"]),
    )
    tensors = {"x": torch.arange(4.0), "y": torch.zeros(4)}
    execute(made, tensors)
    return tensors


def test_a_copy_keeps_the_values_from_before_a_later_write() -> None:
    tensors = snapshot("inout")
    assert tensors["y"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert tensors["x"].tolist() == [0.0, 2.0, 4.0, 6.0]


def test_a_copy_that_is_written_later_leaves_its_source_alone() -> None:
    x, t, y = spec("x", "input", (4,)), spec("t", "temp", (4,)), spec("y", "output", (4,))
    access = {tensor.name: operand(tensor, (1,)) for tensor in (x, t, y)}
    made = program(
        (x, t, y),
        op("ReStickifyOpHBM", (4,), (access["x"],), access["t"]),
        op("add", (4,), (access["t"], access["t"]), access["t"]),
        op("add", (4,), (access["t"], access["x"]), access["y"]),
    )
    tensors = {"x": torch.arange(4.0), "y": torch.zeros(4)}
    execute(made, tensors)
    assert tensors["x"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert tensors["y"].tolist() == [0.0, 3.0, 6.0, 9.0]


def test_a_copy_of_memory_that_an_alias_writes_is_a_real_copy() -> None:
    x, z, t, y = spec("x", "input", (4,)), spec("z", "inout", (4,)), spec("t", "temp", (4,)), spec("y", "output", (4,))
    access = {tensor.name: operand(tensor, (1,)) for tensor in (x, z, t, y)}
    made = program(
        (x, z, t, y),
        op("identity", (4,), (access["x"],), access["t"]),
        op("add", (4,), (access["z"], access["z"]), access["z"]),
        op("identity", (4,), (access["t"],), access["y"]),
    )
    memory = torch.arange(4.0)
    out = torch.zeros(4)
    execute(made, {"x": memory, "z": memory, "y": out})
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]
    assert memory.tolist() == [0.0, 2.0, 4.0, 6.0]
