"""Programs as the compiler would make them, small enough to check the clock by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from spyre_backend.program import Op, Operand, Program, StickLayout, TensorSpec
from tests.emulator.programs import contiguous, program

EPS = 64


def tensor(name: str, kind: Any, size: tuple[int, ...], lx: int | None = None) -> TensorSpec:
    """A row-major fp16 tensor in the default device layout of D2.2."""
    strides = contiguous(size)
    sticks = math.ceil(size[-1] / EPS)
    outer = [(n, s) for n, s in zip(size[1:-1], strides[1:-1], strict=True)]
    first = [(size[0], strides[0])] if len(size) > 1 else []
    dims = [*outer, (sticks, EPS), *first, (EPS, 1)]
    layout = StickLayout(
        device_size=tuple(n for n, _ in dims),
        stride_map=tuple(s for _, s in dims),
        device_dtype="SEN169_FP16",
        stick_dim=len(size) - 1,
    )
    return TensorSpec(name=name, kind=kind, dtype="float16", size=size, stride=strides, layout=layout, lx_address=lx)


def sparse(name: str, kind: Any, size: tuple[int, ...], lx: int | None = None) -> TensorSpec:
    """A tensor with one element in each stick, as a reduction over the stick leaves it (D2.1)."""
    layout = StickLayout(
        device_size=(*size, EPS), stride_map=(*contiguous(size), -1), device_dtype="SEN169_FP16", stick_dim=None
    )
    return replace(tensor(name, kind, size, lx), layout=layout)


def read(spec: TensorSpec, strides: tuple[int, ...], offset: int = 0) -> Operand:
    """An access; the stick is the dim of unit stride, or none of a sparse tensor."""
    stick = strides.index(1) if 1 in strides and spec.layout.stick_dim is not None else None
    return Operand(tensor=spec.name, strides=strides, offset=offset, dtype="float16", stick=stick)


def pointwise(name: str, inputs: list[TensorSpec], output: TensorSpec, split: tuple[int, ...]) -> Op:
    """`name` over all of `output`; inputs of size 1 along a dim broadcast."""
    operands = tuple(read(t, tuple(0 if n == 1 else s for n, s in zip(t.size, t.stride, strict=True))) for t in inputs)
    return Op(name=name, dims=output.size, reduced=0, inputs=operands, output=read(output, output.stride), split=split)


def matmul(m: int, n: int, k: int, split: tuple[int, int, int]) -> Program:
    """[m, k] x [k, n], divided as given."""
    a, b, c = tensor("a", "input", (m, k)), tensor("b", "input", (k, n)), tensor("c", "output", (m, n))
    op = Op(
        name="batchmatmul",
        dims=(m, n, k),
        reduced=1,
        inputs=(read(a, (k, 0, 1)), read(b, (0, 1, n) if n > 1 else (0, 0, 1))),
        output=read(c, (n, 1, 0)),
        split=split,
    )
    return program((a, b, c), op)


def softmax(rows: int, columns: int, *, resident: bool) -> Program:
    """max, sub, exp, sum, realdiv over the last dim on 32 cores; temporaries in the scratchpads if `resident`."""
    address = 0 if resident else None
    x, y = tensor("x", "input", (rows, columns)), tensor("y", "output", (rows, columns))
    shifted, weights = (tensor(n, "temp", (rows, columns), address) for n in ("shifted", "weights"))
    peak, total = (sparse(n, "temp", (rows, 1), address) for n in ("peak", "total"))

    def reduction(name: str, source: TensorSpec, target: TensorSpec) -> Op:
        dims, split = (rows, 1, columns), (32, 1, 1)
        inputs = (read(source, (columns, 0, 1)),)
        return Op(name=name, dims=dims, reduced=1, inputs=inputs, output=read(target, (1, 0, 0)), split=split)

    ops = (
        reduction("max", x, peak),
        pointwise("sub", [x, peak], shifted, (32, 1)),
        pointwise("exp", [shifted], weights, (32, 1)),
        reduction("sum", weights, total),
        pointwise("realdiv", [weights, total], y, (32, 1)),
    )
    return program((x, y, shifted, weights, peak, total), *ops)
