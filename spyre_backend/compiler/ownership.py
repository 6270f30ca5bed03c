"""Which core owns which part of a tensor in one access, in a form that can be compared (see ``spyre_backend.slices``).

Two operations agree on a scratchpad resident when every core that takes part in the second owns what it reads there
after the first.  Loops may differ (a consumer may walk (heads, 64) where the producer walked 768 elements), so what is
compared is the function from element offset to core number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spyre_backend.compiler.graph import Buffer, operands
from spyre_backend.program import Op, Operand


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A digit of the core number: ``(offset % wrap) // block % pieces``, times ``weight``.

    ``block`` are elements of the tensor's storage; ``wrap`` is 0 where the division is even and needs none.
    """

    block: int
    pieces: int
    weight: int
    wrap: int = 0


@dataclass(frozen=True, slots=True)
class Division:
    """How an access divides its tensor.

    ``copies`` are (pieces, weight) of divided dims that the tensor does not depend on: several cores read the same
    elements.  ``sums`` are those of divided reduced dims in the access that writes: only digit 0 owns the result.
    """

    parts: tuple[Part, ...]
    copies: tuple[tuple[int, int], ...] = ()
    sums: tuple[tuple[int, int], ...] = ()

    @property
    def shares(self) -> int:
        """Into how many pieces the tensor is divided."""
        return math.prod(part.pieces for part in self.parts)

    def __str__(self) -> str:
        text = " x ".join(f"{p.pieces} blocks of {p.block} (core step {p.weight})" for p in self.parts) or "one core"
        if self.copies:
            text += f", {math.prod(n for n, _ in self.copies)} copies"
        return text + (f", sums over {math.prod(n for n, _ in self.sums)} cores" if self.sums else "")


def units_of(buffers: Mapping[str, Buffer], op: Op) -> tuple[int, ...]:
    """Elements that stay together in each dim: the longest stick of an operand that runs along it, else 1."""
    units = [1] * len(op.dims)
    for operand in (op.output, *operands(op)):
        if operand.stick is not None:
            units[operand.stick] = max(units[operand.stick], buffers[operand.tensor].eps)
    return tuple(units)


def division_of(buffers: Mapping[str, Buffer], op: Op, operand: Operand) -> Division:
    """The division of ``operand``'s tensor in ``op``, one of whose accesses it is."""
    units = units_of(buffers, op)
    kept = len(op.dims) - op.reduced
    parts: list[Part] = []
    copies: list[tuple[int, int]] = []
    sums: list[tuple[int, int]] = []
    for dim, weight in weights(op).items():
        pieces, stride = op.split[dim], operand.strides[dim]
        if operand is op.output and dim >= kept:
            sums.append((pieces, weight))
        elif not stride:
            copies.append((pieces, weight))
        else:
            step = per_core(op.dims[dim], units[dim], pieces)
            wrap = 0 if step * pieces == op.dims[dim] else stride * op.dims[dim]
            parts.append(Part(stride * step, pieces, weight, wrap))
    return Division(_merged(sorted(parts)), tuple(sorted(copies)), tuple(sorted(sums)))


def per_core(extent: int, unit: int, pieces: int) -> int:
    """Elements of a dim in one slice, whole units (``spyre_backend.slices``)."""
    return math.ceil(math.ceil(extent / unit) / pieces) * unit


def weights(op: Op) -> dict[int, int]:
    """What one step of each divided dim's digit adds to the core number."""
    order = op.core_order or tuple(reversed(range(len(op.dims))))
    found, step = {}, 1
    for dim in order:
        if op.split and op.split[dim] > 1:
            found[dim] = step
            step *= op.split[dim]
    return found


def _merged(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Neighbouring digits that count on: (B=2) x (S=16) over consecutive blocks is 32 blocks."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        follows = (
            last is not None
            and not (last.wrap or part.wrap)
            and part.block == last.block * last.pieces
            and part.weight == last.weight * last.pieces
        )
        if follows and last is not None:
            result[-1] = Part(last.block, last.pieces * part.pieces, last.weight)
        else:
            result.append(part)
    return tuple(result)


def output_dims(op: Op) -> tuple[int, ...]:
    """The iteration space as the output sees it: topk writes ``k`` of the last dim, reductions the kept dims."""
    if "k" in op.attrs and op.name.startswith("topk"):
        return (*op.dims[:-1], int(op.attrs["k"]))
    return op.dims[: len(op.dims) - op.reduced]


def is_whole(op: Op, operand: Operand, buffer: Buffer) -> bool:
    """Whether the access touches every element of ``buffer`` and begins at the first (D4.5: no partial, no offset)."""
    dims = output_dims(op) if operand is op.output else op.dims
    if operand.offset or 0 in dims:
        return False
    steps = sorted((s, n) for s, n in zip(operand.strides, dims, strict=False) if s and n > 1)
    reach = 1
    for stride, extent in steps:
        if stride != reach:
            return False
        reach *= extent
    return reach == math.prod(buffer.size)


def share_sticks(buffer: Buffer, op: Op, operand: Operand, units: Sequence[int]) -> int:
    """Sticks of ``buffer`` that the core with the largest share touches through ``operand``.

    Without a stick dim in the access (sparse layout), every element has a stick of its own.
    """
    dims = output_dims(op) if operand is op.output else op.dims
    count = 1
    for dim, (stride, extent) in enumerate(zip(operand.strides, dims, strict=False)):
        if not stride:
            continue
        pieces = op.split[dim] if op.split else 1
        part = min(per_core(extent, units[dim], pieces), extent)
        count *= math.ceil(part / buffer.eps) if dim == operand.stick else part
    return count
