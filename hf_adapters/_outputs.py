"""From what the padded model returned to what the caller of the stock model expects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_adapters.errors import UnsupportedOptionError

CACHES = ("cache", "past_key_values", "encoder_past_key_values", "mems")
TOKEN_SCORES = ("start_logits", "end_logits")
"""Rank-2 outputs ``[batch, tokens]``; all others of rank 2 are ``[batch, features]``."""


@dataclass(frozen=True)
class Extent:
    """Sizes of the caller's input and of the padded one.

    Attributes:
        batch: rows the caller gave.
        length: tokens per row the caller gave.
        padded_batch: rows the model saw.
        padded_length: tokens per row the model saw.
    """

    batch: int
    length: int
    padded_batch: int
    padded_length: int


def to_caller(
    value: Any, *, dtype: torch.dtype | None, device: torch.device, extent: Extent | None, key: str = ""
) -> Any:
    """Copy outputs to the caller's device and dtype and cut off the padding.

    Args:
        value: tensor, ModelOutput, tuple, list or dict of such; anything else is passed through.
        dtype: dtype of floating point results; None keeps theirs.
        device: where the caller's tensors are.
        extent: sizes for cutting; None when nothing was padded.
        key: name of the output field, which tells sequence dimensions from others.

    Returns:
        The same structure with detached tensors; caches become None.
    """
    if isinstance(value, Tensor):
        return _cut(to_host(value, dtype), key, extent).to(device)

    def inner(item: Any, name: str) -> Any:
        return to_caller(item, dtype=dtype, device=device, extent=extent, key=name)

    if key in CACHES:
        return None
    if isinstance(value, Mapping):
        # ModelOutput is a Mapping and a dataclass; building it anew keeps it picklable.
        items = {name: inner(item, name) for name, item in value.items()}
        return type(value)(**items) if hasattr(value, "to_tuple") else type(value)(items)  # type: ignore[call-arg]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(inner(item, name) for name, item in zip(value._fields, value, strict=True)))
    if isinstance(value, list | tuple):
        return type(value)(inner(item, key) for item in value)
    return value


def to_host(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """A host copy; floating point device tensors are read as float32, which holds values that float16 cannot (D1.5)."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        if tensor.is_floating_point():
            host = torch.empty(tensor.shape, dtype=torch.float32)
            host.copy_(tensor)
            tensor = host
        else:
            tensor = tensor.cpu()
    return tensor.to(dtype) if dtype is not None and tensor.is_floating_point() else tensor


def _cut(tensor: Tensor, key: str, extent: Extent | None) -> Tensor:
    if extent is None or tensor.dim() == 0:
        return tensor
    if tensor.shape[0] == extent.padded_batch:
        tensor = tensor[: extent.batch]
    for dim in _sequence_dims(tensor, key):
        if tensor.shape[dim] == extent.padded_length:
            tensor = tensor.narrow(dim, 0, extent.length)
    return tensor.clone()


def _sequence_dims(tensor: Tensor, key: str) -> tuple[int, ...]:
    if tensor.dim() == 2:
        return (1,) if key in TOKEN_SCORES else ()
    if tensor.dim() == 3:
        return (1,)
    return (2, 3) if tensor.dim() == 4 else ()


def check_attentions(outputs: Any) -> None:
    """Refuse outputs in which the attentions asked for are missing.

    Raises:
        UnsupportedOptionError: ``attentions`` is absent, empty or holds None.
    """
    given = outputs.get("attentions") if isinstance(outputs, Mapping) else None
    if not given or any(item is None for item in given):
        raise UnsupportedOptionError(
            "output_attentions=True: the attention of this model does not return its weights here; load the model with "
            'attn_implementation="eager", or call hf_adapters.decompile(model) and ask the stock model'
        )


def keep_logits(outputs: Any, kept: int | Tensor | None) -> None:
    """Cut ``outputs["logits"]`` ``[batch, tokens, vocabulary]`` in place, as ``logits_to_keep`` of a stock model does.

    Args:
        outputs: what the caller gets, already without padding.
        kept: that many positions at the end (0: all), or indices ``[n]`` of positions.
    """
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else None
    if kept is None or not isinstance(logits, Tensor) or logits.dim() != 3:
        return
    chosen = slice(-kept if kept else None, None) if isinstance(kept, int) else kept.to(logits.device)
    outputs["logits"] = logits[:, chosen]
