"""Attention written out for the device, and the additive masks that go with it.

Masks are made on the host: comparisons of integers, tril and boolean arithmetic have no kernel (D5.2, D5.4). They are
additive with a finite minimum, because infinite constants become NaN and -inf + -inf does as well (D1.5, D6.4).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_adapters.adapters._sticks import HALF_DTYPES, round_up

IMPLEMENTATION = "spyre"
"""Name under which the attention function and the mask function are registered with transformers."""

_KEEP_ABOVE = -16376.0
"""A mask value below this (half the fill of float16) hides its position completely."""


def mask_fill(dtype: torch.dtype) -> float:
    """The value that hides a position: half the minimum of the dtype, so that the sum of two masks stays finite.

    bfloat16 lives on the device in the same 16-bit format as float16 (D1.6), so it gets the same value.
    """
    return float(torch.finfo(torch.float16 if dtype in HALF_DTYPES else dtype).min) / 2


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Boolean mask -> additive mask: 0 where ``visible`` is true, :func:`mask_fill` elsewhere; same shape."""
    shown = torch.zeros((), dtype=dtype, device=visible.device)
    hidden = torch.full((), mask_fill(dtype), dtype=dtype, device=visible.device)
    return torch.where(visible, shown, hidden)


def finite_mask(mask: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A ready-made mask, boolean or additive in any float dtype, as a finite additive mask on ``device``."""
    host = mask.detach().cpu()
    ready = additive(host, dtype) if host.dtype == torch.bool else host.clamp(min=mask_fill(dtype)).to(dtype)
    return ready.contiguous().to(device)


def host_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Any = None,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    use_vmap: bool = False,
    **kwargs: Any,
) -> Tensor:
    """Mask function for transformers' mask interface; it never skips a mask, so one graph serves every input.

    Args:
        batch_size: rows of the batch.
        q_length: number of queries.
        kv_length: number of keys.
        q_offset: position of the first query.
        kv_offset: position of the first key.
        mask_function: index-based rule of transformers (causal, window, ...).
        attention_mask: ``[batch, keys]``, True at real tokens; any device.
        dtype: dtype of the result.
        device: device of the result.
        use_vmap: the rule is not purely index-based.
        **kwargs: what transformers passes for other implementations.

    Returns:
        Additive mask ``[batch, 1, queries, keys]``, or ``[batch, 1, 1, keys]`` when it is the same for all queries.
    """
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function, sdpa_mask

    rule = causal_mask_function if mask_function is None else mask_function
    same_for_all = rule is bidirectional_mask_function and not use_vmap
    visible = sdpa_mask(
        batch_size=batch_size,
        q_length=1 if same_for_all else q_length,
        kv_length=kv_length,
        q_offset=int(q_offset),
        kv_offset=int(kv_offset),
        mask_function=rule,
        attention_mask=None if attention_mask is None else attention_mask.detach().cpu().to(torch.bool),
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        use_vmap=use_vmap,
        device="cpu",
    )
    return additive(visible, dtype).contiguous().to(device)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    *,
    bias: Tensor | None = None,
    softcap: float | None = None,
    empty_rows: str = "zero",
    keep: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention with contiguous heads.

    Args:
        query: ``[batch, heads, queries, head]``.
        key: ``[batch, key heads, keys, head]``; the number of heads is a multiple of the number of key heads.
        value: as ``key``.
        mask: additive, broadcastable to ``[batch, heads, queries, keys]``; None shows everything.
        scaling: factor of the scores, from the size of the real head, not of a padded one.
        bias: additive position bias, broadcastable like the mask.
        softcap: the scores are bounded by ``softcap * tanh(scores / softcap)``.
        empty_rows: what a query that sees no key gets: ``"zero"`` as with fused attention, or ``"mean"`` of all values
            as when the mask is added to the scores.
        keep: factor of the scores, zero where a score counts for nothing, as after ``masked_fill``.

    Returns:
        The output ``[batch, heads, queries, head]`` and the weights ``[batch, heads, queries, keys]``.
    """
    batch, heads, queries, width = query.shape
    groups, keys = heads // key.shape[1], key.shape[2]
    # view -> transpose -> matmul in one graph gives wrong numbers unless the heads are contiguous (D6.10).
    scaled = (query * scaling).contiguous()
    key, value = key.contiguous(), value.contiguous()
    if groups > 1:
        scaled = scaled.view(batch, key.shape[1], groups * queries, width)
    scores = torch.matmul(scaled, key.transpose(2, 3)).view(batch, heads, queries, keys)
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    if keep is not None:
        scores = scores * keep
    if mask is not None:
        scores = scores + mask
    weights = F.softmax(scores, dim=-1)
    if mask is not None and (empty_rows == "zero" or query.dtype in HALF_DTYPES):
        weights = weights * _kept(mask, empty_rows)
    mixed = weights.to(value.dtype)
    if groups > 1:
        mixed = mixed.view(batch, key.shape[1], groups * queries, keys)
    mixed, value = _whole_keys(mixed, value)
    return torch.matmul(mixed, value).view(batch, heads, queries, value.shape[3]), weights


def _whole_keys(weights: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Both with zeros for the keys that are missing to a whole stick, which is what a matmul sums over (D6.11).

    Callers pad to whole sticks already, except for models that refuse lengths beyond their position table (CLIP).
    """
    extra = round_up(value.shape[2]) - value.shape[2]
    if extra:
        weights = torch.cat([weights, weights.new_zeros((*weights.shape[:-1], extra))], dim=-1)
        value = torch.cat([value, value.new_zeros((*value.shape[:2], extra, value.shape[3]))], dim=2)
    return weights, value


def _kept(mask: Tensor, empty_rows: str) -> Tensor:
    """1 where the mask shows a position, 0 where it hides it.

    exp never returns less than 2^-24 on the device (D1.5), so hidden positions keep a little weight; in a long padded
    batch these add up. The factor removes them.
    """
    kept = torch.clamp(mask - _KEEP_ABOVE, 0.0, 1.0)
    if empty_rows == "mean":
        kept = kept + (1.0 - kept.amax(dim=-1, keepdim=True))
    return kept


def spyre_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    position_bias: Tensor | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention function for transformers' attention interface.

    Args:
        module: the attention module; ``real_scaling`` and ``empty_rows`` on it, set by adapters, are honoured.
        query: ``[batch, heads, queries, head]``.
        key: ``[batch, key heads, keys, head]``.
        value: as ``key``.
        attention_mask: additive mask from :func:`host_mask`; a boolean one is accepted.
        scaling: factor of the scores; ``head ** -0.5`` when None.
        dropout: must be 0, the device has no random numbers (D5.2).
        is_causal: only matters when there is no mask.
        position_bias: additive bias of the scores (T5).
        softcap: bound of the scores (Gemma 2).
        s_aux: attention sinks, not supported.
        **kwargs: options of other implementations (windows are part of the mask already).

    Returns:
        The output ``[batch, queries, heads, head]`` and the weights ``[batch, heads, queries, keys]``.

    Raises:
        NotImplementedError: dropout or attention sinks were asked for.
    """
    if dropout:
        raise NotImplementedError("attention dropout is not available on the device; call model.eval() first")
    if s_aux is not None:
        raise NotImplementedError(f"attention sinks of {type(module).__name__} are not supported by this adapter")
    if attention_mask is None and query.shape[2] > 1 and _causal(module, is_causal):
        steps = torch.arange(key.shape[2])
        visible = steps[None, :] <= steps[-query.shape[2] :, None]
        attention_mask = additive(visible, query.dtype).to(query.device)
    elif attention_mask is not None and attention_mask.dtype == torch.bool:
        attention_mask = additive(attention_mask, query.dtype)
    output, weights = attend(
        query,
        key,
        value,
        attention_mask,
        _scaling(module, query, scaling),
        bias=position_bias,
        softcap=softcap,
        empty_rows=getattr(module, "empty_rows", "zero"),
    )
    return output.transpose(1, 2).contiguous(), weights


def _scaling(module: nn.Module, query: Tensor, asked: float | None) -> float:
    """The factor of the scores: that of the unpadded heads where heads are padded."""
    real: float | None = getattr(module, "real_scaling", None)
    if real is not None:
        return real
    return float(query.shape[-1] ** -0.5) if asked is None else asked


def _causal(module: nn.Module, asked: bool | None) -> bool:
    return bool(getattr(module, "is_causal", True)) if asked is None else asked


def register() -> None:
    """Makes the two functions known to transformers under :data:`IMPLEMENTATION`; doing it again changes nothing."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(IMPLEMENTATION, spyre_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, host_mask)
