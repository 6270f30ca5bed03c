"""Normalisations written for the device: statistics in float32, products in place of pow, padding-aware.

The native layer norm computes the variance as E[x^2] - mean^2 in the 16-bit device format and turns NaN on rows whose
variance is small against their mean; an epsilon of 1e-12 underflows there (D6.5). The operations used here are in the
list of those with a float32 kernel (D1.6).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hf_adapters.adapters._sticks import HALF_DTYPES, Spread, real_lanes, spread_vector
from hf_adapters.protocols import PatcherProtocol


def mean_over(values: Tensor, width: int) -> Tensor:
    """Mean over the last dimension, of which only ``width`` elements are real and the others are zero."""
    if values.shape[-1] == width:
        return values.mean(-1, keepdim=True)
    return values.sum(-1, keepdim=True) * (1.0 / width)


class _Norm(nn.Module):
    """What both mixins share.

    Attributes:
        eps_name: attribute of the stock module that holds epsilon; read at every call.
        norm_width: number of real elements in the last dimension; None when it is not padded.
        padded_scale, padded_shift: padded copies of the parameters; None when not padded.
        lanes: one where a padded row is real; None when not padded.
    """

    eps_name: str
    norm_width: int | None = None
    padded_scale: Tensor | None = None
    padded_shift: Tensor | None = None
    lanes: Tensor | None = None

    def _scale(self) -> Tensor | None:
        return self.padded_scale if self.norm_width is not None else getattr(self, "weight", None)

    def _shift(self) -> Tensor | None:
        return self.padded_shift if self.norm_width is not None else getattr(self, "bias", None)

    def _eps(self, dtype: torch.dtype) -> float:
        eps = getattr(self, self.eps_name)
        return torch.finfo(dtype).eps if eps is None else float(eps)


class TwoPassLayerNorm(_Norm):
    """Mixin for layer norms over the last dimension: the mean first, then the mean of the squared deviations.

    Attributes:
        always_float32: the stock module normalises in float32 whatever the dtype of its input (DeBERTa).
    """

    always_float32: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """``[..., n] -> [..., n]``; statistics in float32 for 16-bit inputs, else in the dtype of the input."""
        work = input.to(torch.float32) if self.always_float32 or input.dtype in HALF_DTYPES else input
        width = input.shape[-1] if self.norm_width is None else self.norm_width
        deviation = work - mean_over(work, width)
        if self.lanes is not None:
            deviation = deviation * self.lanes.to(work.dtype)
        variance = mean_over(deviation * deviation, width)
        wide = variance + self._eps(input.dtype)
        # The quotient where the stock module rounds it to float32 as well.
        normed = deviation / torch.sqrt(wide) if self.always_float32 else deviation * torch.rsqrt(wide)
        normed = normed.to(input.dtype)
        scale, shift = self._scale(), self._shift()
        if scale is not None:
            normed = normed * scale
        return normed if shift is None else normed + shift


class ProductRMSNorm(_Norm):
    """Mixin for root-mean-square norms: ``x * rsqrt(mean(x * x) + eps)``.

    Attributes:
        always_float32: the stock module takes the statistics in float32 whatever the dtype of its input.
        scale_early: the stock module multiplies by the weight before it casts back.
        statistics_only: only the statistics are in float32, the input itself is not cast.
        scale_offset: added to the weight (1 in the Gemma family).
    """

    always_float32: bool
    scale_early: bool
    statistics_only: bool
    scale_offset: float

    def forward(self, input: Tensor) -> Tensor:
        """``[..., n] -> [..., n]`` in the dtype that the stock module returns."""
        lift = self.always_float32 or input.dtype in HALF_DTYPES
        work = input.to(torch.float32) if lift else input
        width = input.shape[-1] if self.norm_width is None else self.norm_width
        inverse = torch.rsqrt(mean_over(work * work, width) + self._eps(input.dtype))
        scale = self._scale()
        if self.statistics_only:
            half = scale is not None and scale.dtype in HALF_DTYPES
            normed = work * inverse if half else input * inverse
            return self._scaled(normed.to(scale.dtype) if half and scale is not None else normed, scale)
        normed = work * inverse
        if self.scale_early and scale is not None:
            return self._scaled(normed, scale.to(normed.dtype)).to(input.dtype)
        return self._scaled(normed.to(input.dtype), scale)

    def _scaled(self, normed: Tensor, scale: Tensor | None) -> Tensor:
        if scale is None:
            return normed
        return normed * (scale + self.scale_offset) if self.scale_offset else normed * scale


def pad_norm(patcher: PatcherProtocol, norm: nn.Module, width: int, padded: int) -> None:
    """Makes a norm that has one of the mixins above work on rows padded with zeros.

    Args:
        patcher: records the steps.
        norm: a module whose class was swapped already.
        width: real elements of a row; statistics divide by it.
        padded: elements of a padded row.

    Raises:
        TypeError: the norm is a stock one, whose statistics would count the padding.
    """
    if not isinstance(norm, _Norm):
        raise TypeError(f"{type(norm).__name__} cannot be padded: no adapter recognised it as a norm")
    plan: Spread = (1, width, padded)
    patcher.set_attr(norm, "norm_width", width)
    if getattr(norm, "weight", None) is None:
        if isinstance(norm, TwoPassLayerNorm):
            raise TypeError(f"{type(norm).__name__} has no weight to take the padding mask from")
        return
    patcher.derive(norm, "padded_scale", ("weight",), spread_vector, plan=plan)
    if isinstance(norm, TwoPassLayerNorm):
        patcher.derive(norm, "lanes", ("weight",), real_lanes, plan=plan)
    if getattr(norm, "bias", None) is not None:
        patcher.derive(norm, "padded_shift", ("bias",), spread_vector, plan=plan)
