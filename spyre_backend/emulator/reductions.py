"""Reductions over the trailing dims of the iteration space.

16-bit sums run in blocks: each block of 64 is summed in fp32 and rounded, and the partial sums are added one after
another in DL16 (D6.5), in groups where there are more of them than the sources measured.  Block, group and mode are
settings of the release.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spyre_backend.emulator.context import Context, ExecutionError, Primitive, constant
from spyre_backend.emulator.numerics import dl16_round, grouped_accumulate
from spyre_backend.emulator.pointwise import as_bool, as_float


def flatten_reduced(context: Context, x: Tensor) -> Tensor:
    """`x` of the iteration space with its reduced dims merged into one last dim (a view where strides allow)."""
    if context.reduced < 1:
        raise ExecutionError("a reduction needs at least one reduced dim")
    kept = x.shape[: x.dim() - context.reduced]
    return x if context.reduced == 1 else x.reshape(*kept, -1)


def blocked_sum(context: Context, x: Tensor) -> Tensor:
    """Sum of float32 `x` over its last dim as the device accumulates it; DL16 values when the operation is 16-bit."""
    mode = context.numerics.reduction_accumulation
    if not context.dl16:
        return x.sum(-1)
    length = x.shape[-1]
    block = {"blocked": context.numerics.reduction_block, "sequential": 1, "fp32": length}[mode]
    if length <= block:
        return context.round(x.sum(-1))
    full = length // block
    blocks = x[..., : full * block].reshape(*x.shape[:-1], full, block)
    partials = [blocks.sum(-1).movedim(-1, 0)]
    if full * block < length:
        partials.append(x[..., full * block :].sum(-1).unsqueeze(0))
    whole = partials[0] if len(partials) == 1 else torch.cat(partials)
    return grouped_accumulate(whole, context.numerics.reduction_group if mode == "blocked" else 0)


def _inverse_count(context: Context, count: int) -> float:
    """1/n as the constant that the mean multiplies by (D5.3)."""
    return constant(1.0 / count, context.dl16, context.numerics) if count else torch.nan


def sum_(context: Context, x: Tensor) -> Tensor:
    """Sum; int64 through fp32, int32 natively."""
    x = flatten_reduced(context, x)
    if x.is_floating_point():
        return blocked_sum(context, x)
    if x.dtype is torch.int64 and context.numerics.int64_arithmetic == "fp32":
        return as_float(x).sum(-1)
    return x.sum(-1, dtype=torch.int64)


def mean(context: Context, x: Tensor) -> Tensor:
    """Sum times the rounded constant 1/n."""
    x = flatten_reduced(context, as_float(x))
    return blocked_sum(context, x) * _inverse_count(context, x.shape[-1])


def exx2_meansq(context: Context, x: Tensor) -> Tensor:
    """Mean of squares, the second output of `exx2`; the products are rounded before they are summed (D6.5)."""
    x = flatten_reduced(context, as_float(x))
    return blocked_sum(context, context.round(x * x)) * _inverse_count(context, x.shape[-1])


def prod(context: Context, x: Tensor) -> Tensor:
    """Product, one factor after another, each step rounded in 16 bits."""
    x = flatten_reduced(context, x)
    if not context.dl16:
        return x.prod(-1)
    result = torch.ones(x.shape[:-1], dtype=x.dtype, device="cpu")
    for factor in x.unbind(-1):
        result = dl16_round(result * factor)
    return result


def _extremum(function: Callable[..., Tensor]) -> Primitive:
    def run(context: Context, x: Tensor) -> Tensor:
        x = flatten_reduced(context, x)
        if x.shape[-1] == 0:
            raise ExecutionError("maximum or minimum of no elements")
        return function(x, dim=-1)

    return run


def _logical(function: Callable[..., Tensor]) -> Primitive:
    def run(context: Context, x: Tensor) -> Tensor:
        return function(as_bool(flatten_reduced(context, x)), dim=-1)

    return run


REDUCTIONS: dict[str, Primitive] = {
    "sum": sum_,
    "mean": mean,
    "max": _extremum(torch.amax),
    "min": _extremum(torch.amin),
    "prod": prod,
    "any": _logical(torch.any),
    "all": _logical(torch.all),
    "exx2_mean": mean,
    "avgpoolfwd": mean,
    "exx2_meansq": exx2_meansq,
}
