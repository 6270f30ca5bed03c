"""Programs with real stick layouts, cores and addresses, for the exact executor's tests."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from spyre_backend.compiler.layouts import stick_layout
from spyre_backend.emulator.context import TORCH_DTYPES
from spyre_backend.emulator.exact import ExactPlan
from spyre_backend.emulator.numerics import dl16_round
from spyre_backend.program import Operand, Program, TensorSpec
from tests.emulator.programs import contiguous, op, program


def spec(
    name: str,
    kind: Any,
    size: tuple[int, ...],
    dtype: str = "float16",
    order: tuple[int, ...] | None = None,
    **rest: Any,
) -> TensorSpec:
    """A contiguous tensor; ``order`` are its dims with the stick last (-1: sparse)."""
    layout = stick_layout(size, dtype, dim_order=order)
    return TensorSpec(name=name, kind=kind, dtype=dtype, size=size, stride=contiguous(size), layout=layout, **rest)


def whole(tensor: TensorSpec, dims: tuple[int, ...], stick: int | None = -1) -> Operand:
    """All of a tensor over ``dims`` of the same number, size-1 dims broadcast; the last dim runs along the stick."""
    strides = tuple(s if n > 1 else 0 for s, n in zip(tensor.stride, tensor.size, strict=True))
    along = len(dims) - 1 if stick == -1 else stick
    return Operand(tensor=tensor.name, strides=strides, offset=0, dtype=tensor.dtype, stick=along)


def chain(size: tuple[int, ...] = (4, 100), **changes: Any) -> Program:
    """`y = exp(neg(x)) + neg(x)` on one core for each row, with both temporaries in the scratchpads.

    ``changes`` replaces fields of the tensor or (named op0, op1, op2) operation of that name.
    """
    x, y = spec("x", "input", size), spec("y", "output", size)
    t, u = spec("t", "temp", size, lx_address=0), spec("u", "temp", size, lx_address=512)
    tensors = [dataclasses.replace(s, **changes.get(s.name, {})) for s in (x, t, u, y)]
    x, t, u, y = tensors
    split = (size[0], *(1 for _ in size[1:]))
    ops = (
        op("neg", size, (whole(x, size),), whole(t, size)),
        op("exp", size, (whole(t, size),), whole(u, size)),
        op("add", size, (whole(u, size), whole(t, size)), whole(y, size)),
    )
    placed = [dataclasses.replace(o, **{"split": split, **changes.get(f"op{i}", {})}) for i, o in enumerate(ops)]
    return program(tuple(tensors), *placed)


def values(tensor: TensorSpec, seed: int = 0) -> Tensor:
    """Values that the tensor's format holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randn(tensor.storage_elements, generator=generator)
    dtype = TORCH_DTYPES[tensor.dtype]
    if dtype is torch.float32:
        return raw if tensor.dtype == "float32" else dl16_round(raw)
    return raw > 0 if dtype is torch.bool else (raw * 8).to(dtype)


def run_exact(made: Program, **given: Tensor) -> dict[str, Tensor]:
    """Run on seeded values, or those given; the working tensors afterwards."""
    tensors = {t.name: given.get(t.name, values(t, seed)) for seed, t in enumerate(made.tensors) if t.kind != "temp"}
    ExactPlan(made).run(tensors)
    return tensors


def row_sum(size: tuple[int, int], dims: tuple[int, int] | None = None, mask: int | None = -1, **rest: Any) -> Program:
    """`y[i] = sum(x[i, :])`, sparse, over ``dims`` if they should differ from the size, all padding lanes masked."""
    dims = size if dims is None else dims
    mask = -dims[1] % 64 if mask == -1 else mask
    x, y = spec("x", "input", size, **rest), spec("y", "output", dims[:1], order=(0, -1))
    read = whole(x, dims)
    write = Operand(tensor="y", strides=(1 if size[0] > 1 else 0, 0), offset=0, dtype="float16", stick=None)
    mask = {} if mask is None else {"masked_lanes": mask}
    return program((x, y), op("sum", dims, (read,), write, 1, **mask))


def matmul(rows: int, columns: int, length: int, split: tuple[int, int, int], **rest: Any) -> Program:
    """`c = a @ b` with A along K and B along N, divided as ``split`` says."""
    a, b, c = (
        spec(n, k, s)
        for n, k, s in (
            ("a", "input", (rows, length)),
            ("b", "input", (length, columns)),
            ("c", "output", (rows, columns)),
        )
    )
    operands = (
        Operand(tensor="a", strides=(length, 0, 1), offset=0, dtype="float16", stick=2),
        Operand(tensor="b", strides=(0, 1, columns), offset=0, dtype="float16", stick=1),
        Operand(tensor="c", strides=(columns, 1, 0), offset=0, dtype="float16", stick=1),
    )
    made = op("batchmatmul", (rows, columns, length), operands[:2], operands[2], 1)
    return program((a, b, c), dataclasses.replace(made, split=split, **rest))
