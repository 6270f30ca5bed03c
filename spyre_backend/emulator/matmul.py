"""Matrix multiplication with the device's blocked accumulation, as batched GEMMs over strided views.

The contracted dim is cut into blocks of 64.  Each block's products are summed in fp32 by one GEMM, and the partial
results are rounded and added in DL16 (D6.5), in groups where there are more of them than the sources measured, as in
reductions.  Operands are never copied: a block of K is a view.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spyre_backend.emulator.context import Context, ExecutionError
from spyre_backend.emulator.numerics import dl16_round_, grouped_accumulate

_PARTIAL_ELEMENTS = 1280 * 1024
"""Partial sums held at once (5 MiB): they should stay in the cache between the GEMM and the accumulation."""
_TILE_ROWS, _TILE_ELEMENTS = 128, 128 * 256
"""What is multiplied at once of a product whose partial sums are more: shapes measured to be among the fastest."""


def batchmatmul(context: Context, a: Tensor, b: Tensor) -> Tensor:
    """C[..., M, N] = A[..., M, K] @ B[..., K, N] over dims (*batch, M, N, K); fp16/bf16 only (D1.6, D5.1).

    Args:
        a: view of the iteration space, constant along N.
        b: view of the iteration space, constant along M.

    Returns:
        Float32 [*batch, M, N] that holds DL16 values.
    """
    if context.reduced != 1 or len(context.dims) < 3:
        raise ExecutionError(
            f"needs dims (*batch, M, N, K) with K reduced, got {context.dims}, {context.reduced} reduced"
        )
    refused = [dtype for dtype in context.in_dtypes if dtype not in ("float16", "bfloat16")]
    if refused:
        raise ExecutionError(f"matmul runs in 16-bit floats only, not in {', '.join(sorted(set(refused)))} (D1.6)")
    for operand, dim, role in ((a, -2, "N"), (b, -3, "M")):
        if operand.stride(dim) != 0 and operand.shape[dim] != 1:
            raise ExecutionError(
                f"an operand has stride {operand.stride(dim)} along {role}, which it must not depend on"
            )
    left, right = a.select(-2, 0), b.select(-3, 0).transpose(-1, -2)
    if 0 in context.dims:
        return torch.zeros(context.dims[:-1], dtype=torch.float32, device="cpu")
    return _batched(context, left, right)


def _batched(context: Context, a: Tensor, b: Tensor) -> Tensor:
    """Reduce any batch dims to one (or none) by merging where strides allow and looping over the rest."""
    shape = (*a.shape[:-1], b.shape[-1])
    if _is_shared(b) and (folded := _fold_rows(a)) is not None:
        return _multiply(context, folded.unsqueeze(0), b[(0,) * (b.dim() - 2)].unsqueeze(0)).view(shape)
    left, right = _merge_batch(a), _merge_batch(b)
    if left is not None and right is not None:
        return _multiply(context, left, right).view(shape)
    return torch.stack([_batched(context, x, y) for x, y in zip(a, b, strict=True)])


def _is_shared(b: Tensor) -> bool:
    """Whether every batch uses the same matrix, as the weight of a linear layer."""
    return all(stride == 0 or size == 1 for size, stride in zip(b.shape[:-2], b.stride()[:-2], strict=True))


def _fold_rows(a: Tensor) -> Tensor | None:
    """[*batch, M, K] as [batch*M, K] without a copy, or None."""
    merged = _merge(a.shape[:-1], a.stride()[:-1])
    return None if merged is None else a.as_strided((merged[0], a.shape[-1]), (merged[1], a.stride(-1)))


def _merge_batch(x: Tensor) -> Tensor | None:
    """[*batch, R, C] as [batch, R, C] without a copy, or None."""
    merged = _merge(x.shape[:-2], x.stride()[:-2])
    return None if merged is None else x.as_strided((merged[0], *x.shape[-2:]), (merged[1], *x.stride()[-2:]))


def _merge(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, int] | None:
    """Size and stride of one dim that walks the same elements as these dims in order, or None."""
    size, stride = 1, 0
    for extent, step in zip(reversed(sizes), reversed(strides), strict=True):
        if extent == 1:
            continue
        if size == 1:
            stride = step
        elif step != size * stride:
            return None
        size *= extent
    return size, stride


def _multiply(context: Context, a: Tensor, b: Tensor) -> Tensor:
    """Multiply [B, M, K] by [B, K, N], a slab of columns (and of rows) at a time so that partial sums stay small."""
    batch, rows, length = a.shape
    columns = b.shape[-1]
    block = _block(context, length)
    if block >= length:
        return dl16_round_(torch.bmm(a, b))
    together = context.numerics.reduction_group if context.numerics.matmul_accumulation == "blocked" else 0
    step, tall, wide = _slab(-(-length // block), batch, rows, columns)
    if (step, tall, wide) == (batch, rows, columns):
        return grouped_accumulate(_partials(a, b, block), together)
    out = torch.empty((batch, rows, columns), dtype=torch.float32, device="cpu")
    for first in range(0, batch, step):
        group = slice(first, first + step)
        for top in range(0, rows, tall):
            for left in range(0, columns, wide):
                partials = _partials(a[group, top : top + tall], b[group, :, left : left + wide], block)
                out[group, top : top + tall, left : left + wide] = grouped_accumulate(partials, together)
    return out


def _slab(blocks: int, batch: int, rows: int, columns: int) -> tuple[int, int, int]:
    """Batches, rows and columns to multiply at once."""
    if blocks * batch * rows * columns <= _PARTIAL_ELEMENTS:
        return batch, rows, columns
    tall = min(rows, _TILE_ROWS)
    wide = min(columns, _TILE_ELEMENTS // tall)
    step = max(1, min(batch, _PARTIAL_ELEMENTS // (blocks * tall * wide)))
    return step, tall, wide


def _block(context: Context, length: int) -> int:
    mode = context.numerics.matmul_accumulation
    return {"blocked": context.numerics.matmul_block, "sequential": 1, "fp32": length}[mode]


def _partials(a: Tensor, b: Tensor, block: int) -> Tensor:
    """Float32 [blocks, B, M, N]: the product over each block of K; a short last block is allowed."""
    batch, rows, length = a.shape
    columns = b.shape[-1]
    blocks = -(-length // block)
    partials = torch.empty((blocks, batch, rows, columns), dtype=torch.float32, device="cpu")
    full = length // block
    if batch == 1:
        step_a, step_b = a.stride(2), b.stride(1)
        blocks_a = a.as_strided((full, rows, block), (block * step_a, a.stride(1), step_a))
        blocks_b = b.as_strided((full, block, columns), (block * step_b, step_b, b.stride(2)))
        torch.bmm(blocks_a, blocks_b, out=partials[:full, 0])
    else:
        for index in range(full):
            part = slice(index * block, (index + 1) * block)
            torch.bmm(a[:, :, part], b[:, part], out=partials[index])
    if full < blocks:
        torch.bmm(a[:, :, full * block :], b[:, full * block :], out=partials[full])
    return partials
