"""The forms in which callers hand over attention masks."""

from __future__ import annotations

import torch
from torch import Tensor

from hf_adapters._outputs import Extent
from hf_adapters.errors import InputError

HIDDEN = -65504.0
"""Smallest float16; anything below it in an additive mask, -inf included, means the same: not visible."""


def token_mask(mask: Tensor, extent: Extent) -> Tensor:
    """A 2-D mask of any dtype as int64 zeros and ones ``[batch, tokens]``.

    Raises:
        InputError: the shape is not that of the input, or a value is neither 0 nor 1.
    """
    if tuple(mask.shape) != (extent.batch, extent.length):
        raise InputError(
            f"attention_mask is {tuple(mask.shape)}, the input has {extent.batch} rows of {extent.length} tokens"
        )
    flags = mask != 0
    if mask.dtype != torch.bool and not bool(((mask == 1) | ~flags).all()):
        raise InputError(
            "a 2-D attention_mask holds 1 for tokens and 0 for padding; this one holds other values, which the stock "
            "model reads as 1. Give an additive mask as [batch, 1, tokens, tokens]"
        )
    return flags.to(torch.int64)


def dense_mask(mask: Tensor, extent: Extent) -> Tensor:
    """A ready-made 4-D mask, bool or additive, as a finite additive float32 mask of the padded length.

    Args:
        mask: ``[batch or 1, heads or 1, tokens or 1, tokens]``; bool and integer: true means visible; float: added to
            the scores.
        extent: the caller's and the padded sizes.

    Returns:
        ``[batch, heads or 1, padded_length, padded_length]``; added keys are hidden, added queries see the first key.

    Raises:
        InputError: the shape does not fit the input, or a value is NaN.
    """
    batch, length = extent.batch, extent.length
    rows, _, queries, keys = mask.shape
    if rows not in (1, batch) or queries not in (1, length) or keys != length:
        raise InputError(
            f"a 4-D attention_mask must be [{batch}, 1, {length}, {length}] for this input, got {tuple(mask.shape)}"
        )
    if mask.is_floating_point():
        if bool(mask.isnan().any()):
            raise InputError("attention_mask holds NaN")
        additive = mask.to(torch.float32).clamp(min=HIDDEN)
    else:
        additive = torch.zeros(mask.shape, dtype=torch.float32).masked_fill(mask == 0, HIDDEN)
    size = extent.padded_length
    out = torch.full((batch, mask.shape[1], size, size), HIDDEN)
    out[..., 0] = 0.0
    out[:, :, :length, :] = HIDDEN
    out[:, :, :length, :length] = additive.expand(batch, -1, length, length)
    return out
