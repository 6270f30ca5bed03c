"""What one core computes on one tile: partial results that are continued over tiles and joined over cores (D6.5).

Tiles have one dim for each loop of the operation, of size 1 along those that an operand does not depend on.  Sums run
in blocks of 64, each summed in fp32, and these partial sums are rounded and added in DL16: first those of all tiles of
a core, in the order of the fast executor; then those of the cores, in the order of their slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from spyre_backend.emulator.context import Context, ExecutionError, constant
from spyre_backend.emulator.numerics import block_accumulate, dl16_round, grouped_accumulate
from spyre_backend.emulator.pointwise import as_bool, as_float

Update = Callable[[Context, Tensor | None, Tensor], Tensor]


def _block(context: Context, length: int) -> int:
    """Elements summed in fp32 before the sum is rounded; 0 where nothing is rounded on the way."""
    numerics = context.numerics
    matmul = context.name == "batchmatmul"
    mode = numerics.matmul_accumulation if matmul else numerics.reduction_accumulation
    if not context.dl16 or mode == "fp32":
        return 0
    return min(length, numerics.matmul_block if matmul else numerics.reduction_block) if mode == "blocked" else 1


def _blocks(x: Tensor, block: int) -> Tensor:
    """[..., n] as [..., n / block, block]."""
    return x.reshape(*x.shape[:-1], -1, block)


def _continued(total: Tensor | None, partials: Tensor) -> Tensor:
    """Partial sums [blocks, ...] behind those that there are already; :func:`settle` adds them up."""
    return partials if total is None else torch.cat([total, partials])


def _add_up(context: Context, total: Tensor | None, x: Tensor) -> Tensor:
    """`x` [..., outer, inner] summed: blocks run along inner, which is the stick where that is reduced."""
    block = _block(context, x.shape[-1])
    if not _block(context, 1):
        part = x.flatten(-2).sum(-1)
        return part if total is None else total + part
    if not x.numel():
        return _continued(total, x.flatten(-2).sum(-1).unsqueeze(0))
    full = x.shape[-1] // block * block
    parts = [_blocks(x[..., :full], block).sum(-1)]
    if full < x.shape[-1]:
        parts.append(x[..., full:].sum(-1, keepdim=True))
    return _continued(total, torch.cat(parts, -1).flatten(-2).movedim(-1, 0))


def _sum(context: Context, total: Tensor | None, x: Tensor) -> Tensor:
    if x.is_floating_point():
        return _add_up(context, total, x)
    if x.dtype is torch.int64 and context.numerics.int64_arithmetic == "fp32":
        part = as_float(x).flatten(-2).sum(-1)
    else:
        part = x.flatten(-2).sum(-1, dtype=torch.int64)
    return part if total is None else total + part


def _mean(context: Context, total: Tensor | None, x: Tensor) -> Tensor:
    return _add_up(context, total, as_float(x))


def _squares(context: Context, total: Tensor | None, x: Tensor) -> Tensor:
    x = as_float(x)
    return _add_up(context, total, context.round(x * x))


def _product(context: Context, total: Tensor | None, x: Tensor) -> Tensor:
    x = x.flatten(-2)
    if not context.dl16:
        part = x.prod(-1)
        return part if total is None else total * part
    result = torch.ones(x.shape[:-1]) if total is None else total
    for factor in x.unbind(-1):
        result = dl16_round(result * factor)
    return result


def _extremum(whole: Callable[..., Tensor], pair: Callable[[Tensor, Tensor], Tensor]) -> Update:
    def update(context: Context, total: Tensor | None, x: Tensor) -> Tensor:
        if not x.numel():
            raise ExecutionError("maximum or minimum of no elements")
        part = whole(x.flatten(-2), dim=-1)
        return part if total is None else pair(total, part)

    return update


def _logical(whole: Callable[..., Tensor], pair: Callable[[Tensor, Tensor], Tensor]) -> Update:
    def update(context: Context, total: Tensor | None, x: Tensor) -> Tensor:
        part = whole(as_bool(x.flatten(-2)), dim=-1)
        return part if total is None else pair(total, part)

    return update


_UPDATES: dict[str, Update] = {
    "sum": _sum,
    "mean": _mean,
    "exx2_mean": _mean,
    "avgpoolfwd": _mean,
    "exx2_meansq": _squares,
    "prod": _product,
    "max": _extremum(torch.amax, torch.maximum),
    "min": _extremum(torch.amin, torch.minimum),
    "any": _logical(torch.any, torch.logical_or),
    "all": _logical(torch.all, torch.logical_and),
}

REDUCTIONS = frozenset(_UPDATES)
SUMS = frozenset({"sum", "mean", "exx2_mean", "avgpoolfwd", "exx2_meansq", "batchmatmul"})
"""Operations whose tiles give partial sums."""


def reduce_tile(context: Context, total: Tensor | None, x: Tensor, stick: int | None) -> Tensor:
    """Continue a reduction with a tile.

    Args:
        context: the operation; its last ``reduced`` loops are reduced.
        total: what the core has so far, None at the beginning.
        x: tile of the operand over all loops, expanded along the reduced ones.
        stick: the loop along the operand's stick.

    Returns:
        The partial result over the kept loops, or partial sums for :func:`settle`.
    """
    kept = x.dim() - context.reduced
    if stick is not None and stick >= kept:
        x = x.movedim(stick, -1).flatten(kept, -2) if context.reduced > 1 else x.unsqueeze(-2)
    else:
        x = x.flatten(kept).unsqueeze(-2)
    return _UPDATES[context.name](context, total, x)


def settle(context: Context, total: Tensor) -> Tensor:
    """What a core has after its last tile: of a sum in blocks [blocks, ...], the sum of its partial sums."""
    if context.name not in SUMS or not _block(context, 1):
        return total
    numerics = context.numerics
    mode = numerics.matmul_accumulation if context.name == "batchmatmul" else numerics.reduction_accumulation
    return grouped_accumulate(total.contiguous(), numerics.reduction_group if mode == "blocked" else 0)


def finish(context: Context, total: Tensor, count: int) -> Tensor:
    """The result of a reduction over `count` elements: a mean multiplies by the rounded constant 1/n (D5.3)."""
    if context.name in ("mean", "exx2_mean", "exx2_meansq", "avgpoolfwd"):
        inverse = constant(1.0 / count, context.dl16, context.numerics) if count else torch.nan
        return (context.round(total) if context.dl16 else total) * inverse
    return total


def multiply_tile(context: Context, total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    """Continue a matmul: A [*batch, M, 1, K] times B [*batch, 1, N, K], both tiles expanded along K.

    Returns partial sums for :func:`settle`.
    """
    left, right = a.squeeze(-2), b.squeeze(-3)
    block = _block(context, left.shape[-1])
    if not block:
        part = torch.matmul(left, right.transpose(-1, -2))
        return part if total is None else total + part
    full = left.shape[-1] // block * block
    parts = []
    for begin, end, step in ((0, full, block), (full, left.shape[-1], left.shape[-1] - full)):
        if begin < end:
            x = _blocks(left[..., begin:end], step).movedim(-2, 0)
            y = _blocks(right[..., begin:end], step).movedim(-2, 0)
            parts.append(torch.matmul(x, y.transpose(-1, -2)))
    return _continued(total, torch.cat(parts) if len(parts) > 1 else parts[0])


def join_cores(context: Context, totals: Sequence[Tensor]) -> Tensor:
    """Add the partial sums of cores that share a result, in the order of their slices (D4.4: the K of a matmul)."""
    if len(totals) == 1:
        return totals[0]
    stacked = torch.stack(list(totals))
    return block_accumulate(stacked) if _block(context, 1) else stacked.sum(0)
