"""Stage 4, stick layouts: how a tensor lies in 128-byte sticks, and which loop variable runs along a stick.

The default layout is D2.2; legality of an access is D2.5 and D6.11.  A buffer's layout is described by the host dim
that runs along the stick, or None for a sparse stick (one logical element in each, D2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from spyre_backend.compiler.graph import EPS_BY_DTYPE, Buffer
from spyre_backend.program import Operand, StickLayout

DEVICE_FORMATS = {
    "float16": "SEN169_FP16",
    "bfloat16": "SEN169_FP16",
    "bool": "SEN169_FP16",
    "float32": "IEEE_FP32",
    "int32": "IEEE_INT32",
    "int64": "IEEE_INT32",
    "int8": "SENINT8",
    "float8_e4m3fn": "SEN143_FP8",
}
"""Device format of each host dtype (D1.6, column 2026)."""

Problem = Literal["view-stick-split", "slice-stick-offset"]


class IllegalAccess(Exception):
    """An access whose stick expression the device cannot address; ``rule`` says which kind (D2.5)."""

    def __init__(self, rule: Problem, expression: str) -> None:
        super().__init__(expression)
        self.rule = rule
        self.expression = expression


@dataclass(frozen=True, slots=True)
class _Dim:
    index: int
    size: int
    stride: int


def stick_layout(
    size: Sequence[int],
    dtype: str,
    *,
    stride: Sequence[int] | None = None,
    dim_order: Sequence[int] | None = None,
) -> StickLayout:
    """The layout of a tensor of ``size`` in elements (D2.2).

    Args:
        size: host extents.
        dtype: host dtype's name, which fixes the elements per stick.
        stride: host strides in elements; row-major if None.
        dim_order: host dims, the stick dim last; a trailing -1 makes a sparse stick.  The identity if None.

    Raises:
        ValueError: in the device's own words, if size, stride and dim_order do not belong together.
    """
    eps = EPS_BY_DTYPE[dtype]
    strides = tuple(stride) if stride is not None else _row_major(size)
    if len(strides) != len(size):
        raise ValueError("Incompatible host_size and host_strides")
    order = tuple(range(len(size))) if dim_order is None else tuple(dim_order)
    sparse = bool(order) and order[-1] == -1
    if sorted(order[:-1] if sparse else order) != list(range(len(size))):
        raise ValueError("Incompatible host_size and dim_order")
    device = DEVICE_FORMATS[dtype]
    if not order or (sparse and len(order) == 1):
        return StickLayout(device_size=(1, eps), stride_map=(-1, -1), device_dtype=device, stick_dim=None)
    stick = order[-1]
    extents, steps = [], []
    for dim in order[1:]:
        extents.append(-(-_size(size, dim) // eps) if dim == stick else size[dim])
        steps.append(_step(size, strides, dim, eps if dim == stick else 1))
    if len(order) == 1:
        extents, steps = [-(-size[stick] // eps)], [_step(size, strides, stick, eps)]
    else:
        extents.append(size[order[0]])
        steps.append(_step(size, strides, order[0], 1))
    return StickLayout(
        device_size=(*extents, eps),
        stride_map=(*steps, _step(size, strides, stick, 1)),
        device_dtype=device,
        stick_dim=None if sparse else stick,
    )


def _row_major(size: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(size):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _size(size: Sequence[int], dim: int) -> int:
    return 1 if dim == -1 else size[dim]


def _step(size: Sequence[int], strides: Sequence[int], dim: int, factor: int) -> int:
    return -1 if dim == -1 or size[dim] == 1 else strides[dim] * factor


def layout_of(buffer: Buffer, stick_dim: int | None) -> StickLayout:
    """The layout of ``buffer`` with ``stick_dim`` along the stick (None: sparse), other dims in host order."""
    rank = len(buffer.size)
    if stick_dim is None:
        order: tuple[int, ...] = (*range(rank), -1) if rank else ()
    else:
        order = (*(d for d in range(rank) if d != stick_dim), stick_dim)
    return stick_layout(buffer.size, buffer.dtype, stride=buffer.stride, dim_order=order)


def default_stick_dim(buffer: Buffer) -> int | None:
    """The stick dim of a tensor that came from outside: the dim of stride 1, the last one if there are several.

    A view made on the host of a default layout keeps the stick of its base, which is its stride-1 dim.  A tensor whose
    last dim has size 1 has one element in each stick.
    """
    if not buffer.size:
        return None
    if buffer.size[-1] == 1:
        return None
    unit = [d for d, (n, s) in enumerate(zip(buffer.size, buffer.stride, strict=True)) if s == 1 and n > 1]
    return unit[-1] if unit else None


def stick_variable(operand: Operand, dims: Sequence[int], buffer: Buffer, *, store: bool = False) -> int | None:
    """The iteration dim that runs along the stick of ``buffer`` in this access, or None if none does.

    Legal stick expressions are 0, a bare variable, Mod(variable, EPS), and those plus a constant that keeps whole
    sticks (D2.5); a store may begin inside a stick (cat, #3875).

    Raises:
        IllegalAccess: the view splits a stick, or the slice begins inside one (D6.11).
    """
    assert buffer.layout is not None
    return variable_along(operand, dims, buffer, buffer.layout.stick_dim, store=store)


def variable_along(
    operand: Operand, dims: Sequence[int], buffer: Buffer, stick: int | None, *, store: bool = False
) -> int | None:
    """:func:`stick_variable` as if host dim ``stick`` ran along the stick of ``buffer`` (None: a sparse stick)."""
    if stick is None:
        return None
    step, extent, above = _stick_geometry(buffer, stick)
    inside: list[tuple[int, int]] = []
    for position, (stride, count) in enumerate(zip(operand.strides, dims, strict=True)):
        if stride == 0 or count == 1:
            continue
        coefficient = _coefficient(stride, count, step, extent, above, buffer)
        if coefficient % buffer.eps:
            inside.append((position, coefficient))
    offset = (operand.offset // step) % extent
    text = _expression(inside, offset, buffer.eps)
    if len(inside) > 1 or any(c != 1 for _, c in inside):
        raise IllegalAccess("view-stick-split", text)
    if offset % buffer.eps and not store:
        raise IllegalAccess("slice-stick-offset", text)
    return inside[0][0] if inside else None


def _stick_geometry(buffer: Buffer, stick: int) -> tuple[int, int, int]:
    """(host stride of the stick dim, its extent, the next larger host stride or 0 if there is none)."""
    step = max(buffer.stride[stick], 1)
    larger = [s for d, s in enumerate(buffer.stride) if s > step and buffer.size[d] > 1 and d != stick]
    return step, max(buffer.size[stick], 1), min(larger, default=0)


def _coefficient(stride: int, count: int, step: int, extent: int, above: int, buffer: Buffer) -> int:
    """How far one step of a loop variable moves along the stick dim; 0 if it moves along other dims only."""
    if above and stride % above == 0:
        return 0
    if stride < step:
        if stride * (count - 1) >= step:
            raise IllegalAccess("view-stick-split", f"floor({stride}*d/{step})")
        return 0
    if stride % step:
        raise IllegalAccess("view-stick-split", f"{stride}/{step}*d")
    coefficient = stride // step
    if coefficient * (count - 1) >= extent and extent % buffer.eps:
        # A flattened row: with a partly filled last stick the elements are not consecutive on the device.
        raise IllegalAccess("view-stick-split", f"floor(d/{-(-extent // buffer.eps) * buffer.eps})")
    return coefficient


def _expression(inside: list[tuple[int, int]], offset: int, eps: int) -> str:
    terms = [f"{c}*d{p}" if c != 1 else f"Mod(d{p}, {eps})" for p, c in inside]
    if offset % eps:
        terms.append(str(offset % eps))
    return " + ".join(terms) or "0"
