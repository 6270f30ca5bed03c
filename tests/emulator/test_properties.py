"""Generated programs: the executor against a slow reference that shares no code with it."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spyre_backend.emulator import execute
from spyre_backend.emulator.context import TORCH_DTYPES
from spyre_backend.program import Operand, Program, TensorSpec
from tests.emulator import reference
from tests.emulator.programs import contiguous, op, operand, program, spec

BINARY = ("add", "sub", "mul", "maximum", "minimum", "greaterthan", "lesserequal", "equal")
UNARY = ("abs", "neg", "relufwd", "floor", "ceil", "square", "identity", "ReStickifyOpHBM")
REDUCTIONS = ("sum", "mean", "exx2_mean", "exx2_meansq", "max", "min", "prod")
dims_strategy = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def values_for(tensor: TensorSpec, seed: int) -> torch.Tensor:
    """Small multiples of 1/8, so that block sums are exact in fp32 in any order and only DL16 rounding shows."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(-40, 41, (tensor.storage_elements,), generator=generator)
    dtype = TORCH_DTYPES[tensor.dtype]
    return raw > 0 if dtype is torch.bool else (raw / 8 if dtype is torch.float32 else raw).to(dtype)


def check(made: Program, seed: int) -> None:
    """Run `made` both ways on the same values and compare every element of every output exactly."""
    tensors = {t.name: values_for(t, seed + i) for i, t in enumerate(made.tensors) if t.kind != "temp"}
    slow: dict[str, list[Any]] = {name: tensor.tolist() for name, tensor in tensors.items()}
    execute(made, tensors)
    reference.run(made, slow)
    for name, tensor in tensors.items():
        expected = slow[name]
        for index, (got, want) in enumerate(zip(tensor.tolist(), expected, strict=True)):
            assert got == want or (math.isnan(got) and math.isnan(want)), (name, index, got, want)


@st.composite
def access(draw: st.DrawFn, name: str, dims: tuple[int, ...], dtype: str = "float16") -> tuple[TensorSpec, Operand]:
    """An input that covers `dims`: permuted, broadcast along some dims, and starting at an offset."""
    order = draw(st.permutations(range(len(dims))))
    broadcast = draw(st.lists(st.booleans(), min_size=len(dims), max_size=len(dims)))
    sizes = [1 if broadcast[d] else dims[d] for d in order]
    gap = draw(st.integers(0, 2))
    steps = contiguous((*sizes, 1 + gap))[:-1]
    strides = [0] * len(dims)
    for position, dim in enumerate(order):
        strides[dim] = 0 if broadcast[dim] else steps[position]
    offset = draw(st.integers(0, 5))
    tensor = spec(name, "input", (offset + math.prod(sizes) * (1 + gap),), dtype)
    return tensor, operand(tensor, tuple(strides), offset)


def output_of(draw: st.DrawFn, dims: tuple[int, ...], reduced: int, dtype: str) -> tuple[TensorSpec, Operand]:
    """An output in a random order of dims, written at an offset of a larger tensor."""
    kept = dims[: len(dims) - reduced]
    order = draw(st.permutations(range(len(kept))))
    steps = contiguous(tuple(kept[d] for d in order))
    strides = [0] * len(dims)
    for position, dim in enumerate(order):
        strides[dim] = steps[position]
    offset = draw(st.integers(0, 3))
    tensor = spec("y", "inout", (offset + math.prod(kept) + 1,), dtype)
    return tensor, operand(tensor, tuple(strides), offset)


@given(st.data(), st.integers(0, 2**20))
@settings(max_examples=150, deadline=None)
def test_pointwise_with_any_strides(data: st.DataObject, seed: int) -> None:
    dims = data.draw(dims_strategy)
    name = data.draw(st.sampled_from(BINARY + UNARY))
    inputs = [data.draw(access(f"x{i}", dims)) for i in range(2 if name in BINARY else 1)]
    dtype = "bool" if name in ("greaterthan", "lesserequal", "equal") else "float16"
    y, write = output_of(data.draw, dims, 0, dtype)
    made = program((*(t for t, _ in inputs), y), op(name, dims, tuple(o for _, o in inputs), write))
    check(made, seed)


@given(st.data(), st.integers(0, 2**20))
@settings(max_examples=100, deadline=None)
def test_reductions_with_any_strides(data: st.DataObject, seed: int) -> None:
    outer = data.draw(dims_strategy)
    inner = data.draw(st.sampled_from([(3,), (64,), (130,), (5, 2), (2, 70)]))
    dims, reduced = (*outer, *inner), len(inner)
    x, read = data.draw(access("x", dims))
    y, write = output_of(data.draw, dims, reduced, "float16")
    check(program((x, y), op(data.draw(st.sampled_from(REDUCTIONS)), dims, (read,), write, reduced)), seed)


@given(st.data(), st.integers(0, 2**20))
@settings(max_examples=80, deadline=None)
def test_matmul_with_any_batch_and_layout(data: st.DataObject, seed: int) -> None:
    batch = data.draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    rows, columns = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    length = data.draw(st.sampled_from([2, 64, 128, 150]))
    a, read_a = data.draw(access("a", (*batch, rows, length)))
    b, read_b = data.draw(access("b", (*batch, columns, length)))
    dims = (*batch, rows, columns, length)
    left = operand(a, (*read_a.strides[:-1], 0, read_a.strides[-1]), read_a.offset)
    right = operand(b, (*read_b.strides[:-2], 0, *read_b.strides[-2:]), read_b.offset)
    y, write = output_of(data.draw, dims, 1, "float16")
    check(program((a, b, y), op("batchmatmul", dims, (left, right), write, 1)), seed)


@given(st.data(), st.integers(0, 2**20))
@settings(max_examples=60, deadline=None)
def test_chains_through_temps_in_place_and_at_offsets(data: st.DataObject, seed: int) -> None:
    dims = data.draw(dims_strategy)
    x, read = data.draw(access("x", dims))
    y, write = output_of(data.draw, dims, 0, "float16")
    order = data.draw(st.permutations(range(len(dims))))
    steps = contiguous(tuple(dims[d] for d in order))
    strides = tuple(steps[order.index(d)] for d in range(len(dims)))
    temps = [spec(f"t{i}", "temp", (math.prod(dims),)) for i in range(2)]
    first, second = (operand(t, strides) for t in temps)
    made = program(
        (x, *temps, y),
        op("mul", dims, (read, read), first),
        op("add", dims, (first, read), first),
        op(data.draw(st.sampled_from(UNARY)), dims, (first,), second),
        op("sub", dims, (second, write), write),
        op("add", dims, (first, write), write),
    )
    check(made, seed)


@given(st.data(), st.integers(0, 2**20))
@settings(max_examples=40, deadline=None)
def test_where_selects_by_a_bool_operand(data: st.DataObject, seed: int) -> None:
    dims = data.draw(dims_strategy)
    inputs = [data.draw(access(f"x{i}", dims, dtype)) for i, dtype in enumerate(("bool", "float16", "float16"))]
    y, write = output_of(data.draw, dims, 0, "float16")
    check(program((*(t for t, _ in inputs), y), op("where3", dims, tuple(o for _, o in inputs), write)), seed)
