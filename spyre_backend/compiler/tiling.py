"""Tiles of operations whose tensors no division brings under the span limit (D4.3 ``coarse_tile_span_overflow``).

The device's compiler leaves this off (``SPYRE_INDUCTOR_IGNORE_SPAN_OVERFLOW_HINTS``, D4.8); with the release's setting
``ignore_span_overflow_hints`` false, an operation that is too wide runs as several over parts of one output dim.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spyre_backend.compiler.errors import CompileRefusal
from spyre_backend.program import Const, Op, Operand

MOST_TILES = 64
"""Parts that an operation is cut into at most; the sources give no bound."""


def tiled(op: Op, counts: Sequence[int], units: Sequence[int], divide: Callable[[Op], Op]) -> list[Op]:
    """``op`` divided, in as few tiles as ``divide`` accepts.

    Args:
        op: the operation.
        counts: pieces that each dim consists of (sticks along a stick); a tile takes a whole number of them.
        units: elements of a piece.
        divide: gives an operation its division, or refuses it.

    Raises:
        CompileRefusal: what ``divide`` has against the whole operation, if no tiling helps.
    """
    try:
        return [divide(op)]
    except CompileRefusal as refusal:
        if refusal.rule != "span-limit" or op.name in ("gather", "scatter"):
            raise
        kept = sorted(range(len(op.dims) - op.reduced), key=lambda dim: -counts[dim])
        for tiles in range(2, MOST_TILES + 1):
            for dim in kept:
                if counts[dim] >= tiles:
                    try:
                        return [divide(part) for part in _parts(op, dim, -(-counts[dim] // tiles) * units[dim])]
                    except CompileRefusal as other:
                        if other.rule != "span-limit":
                            raise
        raise refusal from None


def _parts(op: Op, dim: int, length: int) -> list[Op]:
    """``op`` over ranges of ``length`` elements of ``dim``; the last one may be shorter."""
    parts = []
    for start in range(0, op.dims[dim], length):
        extent = min(length, op.dims[dim] - start)
        inputs = tuple(x if isinstance(x, Const) else _shifted(x, dim, start) for x in op.inputs)
        dims = (*op.dims[:dim], extent, *op.dims[dim + 1 :])
        parts.append(replace(op, dims=dims, inputs=inputs, output=_shifted(op.output, dim, start)))
    return parts


def _shifted(operand: Operand, dim: int, start: int) -> Operand:
    return replace(operand, offset=operand.offset + start * operand.strides[dim])
