"""Indices that a forward computes between two regions, kept on the host where the whole forward is one graph."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from hf_adapters.adapters._sticks import round_up

_COMPARED = (Tensor.eq, Tensor.ne, Tensor.__eq__, Tensor.__ne__, torch.eq, torch.ne, operator.eq, operator.ne)
_SOUGHT = (Tensor.argmax, torch.argmax)
_MULTIPLIED = (Tensor.mul, Tensor.__mul__, torch.mul, operator.mul)
_INDEXED = (Tensor.__getitem__, operator.getitem)


class HostIntegers(TorchFunctionMode):
    """Rows are selected as a product, and what decides which row is compared and sought on the host.

    The device has no comparison, product or argmax of integers (D5.2) and no gather (D5.4). Op by op they fall back to
    the host; in one graph with the layers they have to be there from the start.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        """The call itself, or its form on the host."""
        kwargs = kwargs or {}
        if func in _INDEXED and _by_row(*args):
            return rows_by_product(args[0], args[1][1].cpu())
        if (func in _COMPARED or func in _SOUGHT) and _is_integer(args[0]):
            return func(args[0].cpu(), *args[1:], **kwargs)
        if func in _MULTIPLIED and all(_is_integer(a) for a in args):
            return func(*(a.cpu() for a in args))
        if func is Tensor.to and _stays_integer(args, kwargs):
            return args[0].long()
        return func(*args, **kwargs)


def rows_by_product(states: Tensor, where: Tensor) -> Tensor:
    """``states[b, where[b]]`` for every row of the batch.

    Args:
        states: ``[batch, tokens, hidden]``.
        where: int64 ``[batch]`` on the host, each within the tokens; negative ones count from the end.

    Returns:
        ``[batch, hidden]``. Exact: every sum has one term that is not zero.
    """
    tokens = states.shape[1]
    width = round_up(tokens)
    if width > tokens:
        # A matmul sums whole sticks (D6.11); CLIP refuses to be padded beyond its 77 positions.
        missing = states.new_zeros((states.shape[0], width - tokens, states.shape[2]))
        states = torch.cat([states, missing], dim=1)
    chosen = torch.arange(width)[None, :] == (where % tokens)[:, None]
    return torch.matmul(chosen.to(states.dtype)[:, None, :].to(states.device), states).squeeze(1)


def _is_integer(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool and value.dim() > 0


def _by_row(states: Any, index: Any = None) -> bool:
    """``states[integers, integers]`` with one pair for each row of the batch."""
    if not isinstance(states, Tensor) or states.dim() != 3 or not isinstance(index, tuple) or len(index) != 2:
        return False
    return all(_is_integer(part) and part.shape == states.shape[:1] for part in index)


def _stays_integer(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """A cast of a mask or of integers on the host that would take them to the device."""
    value = args[0]
    if value.device.type != "cpu" or value.is_floating_point():
        return False
    wanted = kwargs.get("dtype") or next((a for a in args[1:] if isinstance(a, torch.dtype)), value.dtype)
    return not wanted.is_floating_point and wanted != torch.bool
