"""Device arithmetic of the operations that the device does not compute as one rounded step.

Every handler takes the numeric settings, then ATen's arguments with float32 tensors of DL16 values, and returns the
same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from hf_adapters.validation.dl16 import matmul, rounded, sum_last
from spyre_backend.capabilities import Numerics

aten = torch.ops.aten
Handler = Callable[..., Any]


def _mm(settings: Numerics, a: Tensor, b: Tensor) -> Tensor:
    return matmul(a, b, settings)


def _addmm(settings: Numerics, bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = matmul(a, b, settings)
    if alpha != 1:
        product = rounded(product * alpha, settings)
    return rounded(product + (bias if beta == 1 else rounded(bias * beta, settings)), settings)


def _reduced_dims(x: Tensor, dim: Sequence[int] | int | None) -> list[int]:
    if dim is None or (not isinstance(dim, int) and not dim):
        return list(range(x.dim()))
    return [d % x.dim() for d in ([dim] if isinstance(dim, int) else dim)]


def _sum(
    settings: Numerics,
    x: Tensor,
    dim: Sequence[int] | int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    dims = _reduced_dims(x, dim)
    kept = [d for d in range(x.dim()) if d not in dims]
    total = sum_last(x.permute(*kept, *dims).flatten(len(kept)), settings) if dims else x
    for d in sorted(dims) if keepdim else ():
        total = total.unsqueeze(d)
    return total


def _mean(
    settings: Numerics,
    x: Tensor,
    dim: Sequence[int] | int | None = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Tensor:
    count = math.prod(x.shape[d] for d in _reduced_dims(x, dim))
    return rounded(_sum(settings, x, dim, keepdim) * (1.0 / count), settings)


def _exp(settings: Numerics, x: Tensor) -> Tensor:
    """exp with the device's floor: inputs below about -17 give 2^-24 instead of 0 (D1.5)."""
    out = rounded(x.exp(), settings)
    return torch.where(x < settings.exp_floor_threshold, torch.full_like(out, settings.exp_floor), out)


def _softmax(settings: Numerics, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    shifted = rounded(x - x.amax(dim, keepdim=True), settings)
    weights = _exp(settings, shifted)
    total = _sum(settings, weights, dim, True)
    return rounded(weights / total, settings)


def _log_softmax(settings: Numerics, x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    shifted = rounded(x - x.amax(dim, keepdim=True), settings)
    total = _sum(settings, _exp(settings, shifted), dim, True)
    return rounded(shifted - rounded(total.log(), settings), settings)


def _layer_norm(
    settings: Numerics,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Two passes (centre, then square): the one-pass variance of the device's fused norm cancels to NaN (D6.5), which
    would be no floor at all."""
    dims = list(range(-len(normalized_shape), 0))
    mean = _mean(settings, x, dims, True)
    centred = rounded(x - mean, settings)
    variance = _mean(settings, rounded(centred * centred, settings), dims, True)
    scale = rounded(rounded(variance + eps, settings).rsqrt(), settings)
    out = rounded(centred * scale, settings)
    if weight is not None:
        out = rounded(out * weight, settings)
    if bias is not None:
        out = rounded(out + bias, settings)
    return out, mean, scale


def _rms_norm(
    settings: Numerics,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    dims = list(range(-len(normalized_shape), 0))
    variance = _mean(settings, rounded(x * x, settings), dims, True)
    scale = rounded(
        rounded(variance + (torch.finfo(torch.float32).eps if eps is None else eps), settings).rsqrt(), settings
    )
    out = rounded(x * scale, settings)
    return (out if weight is None else rounded(out * weight, settings)), scale


def _rms_norm_only(
    settings: Numerics,
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    return _rms_norm(settings, x, normalized_shape, weight, eps)[0]


HANDLERS: dict[Any, Handler] = {
    aten.mm: _mm,
    aten.bmm: _mm,
    aten.addmm: _addmm,
    aten.baddbmm: _addmm,
    aten.sum: _sum,
    aten.mean: _mean,
    aten.exp: _exp,
    aten._softmax: _softmax,
    aten._log_softmax: _log_softmax,
    aten.native_layer_norm: _layer_norm,
    aten._fused_rms_norm: _rms_norm,
    aten.rms_norm: _rms_norm_only,
}


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`F.scaled_dot_product_attention` by matrix products and softmax; the square root of the scale goes to each side
    (D5.1).

    Args:
        query: `[..., l, e]`. key: `[..., s, e]`. value: `[..., s, v]`. attn_mask: bool or floating, broadcast to
            `[..., l, s]`.
        dropout_p: must be 0; a model is validated in evaluation mode.

    Returns:
        `[..., l, v]`, the query's dtype. bfloat16 hides positions as float16 does, for both are DL16 (D1.6).

    Raises:
        ValueError: `dropout_p` is not 0.
    """
    if dropout_p:
        raise ValueError(
            f"attention dropout {dropout_p}: a model is validated in evaluation mode; call model.eval() first"
        )
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    hidden = torch.finfo(torch.float16 if query.dtype == torch.bfloat16 else query.dtype).min
    factor = math.sqrt(query.shape[-1] ** -0.5 if scale is None else scale)
    scores = torch.matmul(query * factor, (key * factor).transpose(-2, -1))
    if is_causal:
        keep = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~keep, hidden)
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, hidden) if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.matmul(torch.softmax(scores, -1), value)
