"""Convolution outside a compiled graph: patches are laid out on the host, the device multiplies (D5.1, im2col)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from spyre_backend import _C, capabilities
from spyre_backend.errors import SpyreUnsupported


def convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """aten.convolution_overrideable for one and two spatial dims.

    Args:
        x: [batch, channels, *space] on the device, fp16 or bf16 (a matmul's dtypes).
        weight: [out, channels / groups, *kernel].
        bias: [out] or None.
        stride, padding, dilation: one number for each spatial dim.
        transposed, output_padding: of a transposed convolution, which the device has not (D5.1).
        groups: groups of channels.

    Raises:
        SpyreUnsupported: rule "conv" for transposed and three-dimensional convolutions, rules of the matmul for
            kernels whose size in channels times positions is no whole number of sticks.
    """
    space = x.dim() - 2
    if transposed or space > 2:
        raise _refusal(x, weight, "transposed" if transposed else f"{space} spatial dims")
    kernel = list(weight.shape[2:])
    rows = _patches(x, kernel, list(stride), list(padding), list(dilation), groups)
    wide = weight.reshape(groups, weight.shape[0] // groups, -1)
    parts = [torch.matmul(rows[g], wide[g].t()) for g in range(groups)]
    result = torch.cat(parts, -1) if groups > 1 else parts[0]
    extents = zip(x.shape[2:], kernel, stride, padding, dilation, strict=True)
    sizes = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in extents]
    if bias is not None:
        result = result + bias
    return result.transpose(1, 2).reshape(x.shape[0], weight.shape[0], *sizes)


def _patches(
    x: Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> list[Tensor]:
    """[batch, places, channels * positions] for each group, unfolded on the host and counted as a fallback."""
    host = x.cpu()
    if x.dim() == 3:
        host = host.unsqueeze(2)
        kernel, stride, padding, dilation = [1, *kernel], [1, *stride], [0, *padding], [1, *dilation]
    unfolded = F.unfold(host, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride)).transpose(1, 2)
    _C.count_fallback("aten.im2col.default", "compute")
    return [part.contiguous().to(x.device) for part in unfolded.chunk(groups, -1)]


def _refusal(x: Tensor, weight: Tensor, what: str) -> SpyreUnsupported:
    return SpyreUnsupported(
        op="aten.convolution.default",
        rule="conv",
        shapes=(tuple(x.shape), tuple(weight.shape)),
        dtypes=tuple(str(t.dtype).removeprefix("torch.") for t in (x, weight)),
        hint=capabilities.current().rule("conv").hint,
        detail=f"{what}: not available in release {capabilities.current().release} (D5.1)",
    )
