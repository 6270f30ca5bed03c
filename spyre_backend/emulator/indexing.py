"""Operations that look values up or store them by index: gather, scatter, and the largest k along the stick."""

from __future__ import annotations

import torch
from torch import Tensor

from spyre_backend.emulator.context import Context, ExecutionError


def gather(context: Context, table: Tensor, index: Tensor) -> Tensor:
    """Rows of `table` selected by `index`: result[i] = table[index[i], i].

    Args:
        table: [rows, *dims]; dim 0 is what the index walks (attribute `index_stride` elements apart), strides may be 0.
        index: integers over the iteration space, stride 0 where it does not vary.

    Returns:
        Tensor of the iteration space, with the table's dtype.
    """
    indexed, reduced = _indices(index, table.shape[0])
    walks_both = [dim for dim in indexed if table.stride(dim + 1) != 0 and table.shape[dim + 1] > 1]
    if walks_both:
        return _gather_elements(table, index)
    free = [dim for dim in range(index.dim()) if dim not in indexed]
    slim = table[(slice(None), *(0 if dim in indexed else slice(None) for dim in range(index.dim())))]
    picked = slim.index_select(0, reduced.reshape(-1)).view(*(index.shape[d] for d in indexed), *slim.shape[1:])
    order = indexed + free
    return picked.permute([order.index(dim) for dim in range(index.dim())])


def scatter(table: Tensor, index: Tensor, values: Tensor) -> None:
    """Store rows where `index` says: table[index[i], i] = values[i]; of equal indices the last one stays.

    Args:
        table: [rows, *dims] as for :func:`gather`, with stride 0 along the dims where the index varies; written.
        index: integers over the iteration space, stride 0 where it does not vary.
        values: over the iteration space.
    """
    indexed, picked = _indices(index, table.shape[0])
    free = [dim for dim in range(index.dim()) if dim not in indexed]
    slim = table[(slice(None), *(0 if dim in indexed else slice(None) for dim in range(index.dim())))]
    rows = values.permute([*indexed, *free]).reshape(-1, *(values.shape[dim] for dim in free))
    slim.index_copy_(0, picked.reshape(-1), rows)


def _indices(index: Tensor, rows: int) -> tuple[list[int], Tensor]:
    """The dims along which `index` varies, and its values over these alone, checked against the table's rows."""
    indexed = [dim for dim, stride in enumerate(index.stride()) if stride != 0 and index.shape[dim] > 1]
    reduced = index[tuple(slice(None) if dim in indexed else 0 for dim in range(index.dim()))].to(torch.int64)
    if reduced.numel():
        low, high = int(reduced.min()), int(reduced.max())
        if low < 0 or high >= rows:
            raise ExecutionError(f"index {low if low < 0 else high} is outside a table of {rows} rows")
    return indexed, reduced


def _gather_elements(table: Tensor, index: Tensor) -> Tensor:
    """The general case, in which the table also moves along an indexed dim: element by element."""
    grids = [torch.arange(size, device="cpu") for size in index.shape]
    mesh = torch.meshgrid(*grids, indexing="ij")
    return table[(index.to(torch.int64), *mesh)]


def topkvalue(context: Context, x: Tensor) -> Tensor:
    """The attribute `k` largest values along the last dim, descending."""
    return _topk(context, x)[0]


def topkindex(context: Context, x: Tensor) -> Tensor:
    """Positions of the `k` largest values; of equal values the first comes first."""
    return _topk(context, x)[1]


def _topk(context: Context, x: Tensor) -> tuple[Tensor, Tensor]:
    k = context.integer("k")
    if not 0 < k <= x.shape[-1]:
        raise ExecutionError(f"k = {k} is outside 1..{x.shape[-1]}")
    values, indices = torch.sort(x, dim=-1, descending=True, stable=True)
    return values[..., :k], indices[..., :k]
