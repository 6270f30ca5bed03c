"""Arithmetic of sticks, and zero padding of weights to whole sticks.

A stick is 128 bytes: 64 elements of 16 bits (device fact D2.1). A matmul needs its contraction length in whole sticks,
and a view may split the last dimension only into pieces of whole sticks (D2.5, D6.11).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.pytorch_utils import Conv1D

from hf_adapters.protocols import PatcherProtocol

STICK = 64
"""Elements of a 16-bit dtype in one stick (D2.1)."""

HALF_DTYPES = (torch.float16, torch.bfloat16)

Spread = tuple[int, int, int]
"""(blocks, width, padded): an axis of ``blocks * width`` becomes ``blocks * padded``, each block padded at its end."""


def round_up(size: int) -> int:
    """The smallest multiple of a stick that is not less than ``size`` (elements)."""
    return -(-size // STICK) * STICK


def is_whole(size: int) -> bool:
    """True when ``size`` elements fill whole sticks."""
    return size % STICK == 0


def spread(source: Tensor, axis: int, plan: Spread) -> Tensor:
    """Zero-pads every block of one axis.

    Args:
        source: any dtype; ``source.shape[axis]`` must be ``blocks * width``.
        axis: the axis to pad, 0 or larger.
        plan: (blocks, width, padded).

    Returns:
        A new tensor whose ``axis`` has ``blocks * padded`` elements.

    Raises:
        ValueError: when the axis does not have ``blocks * width`` elements.
    """
    blocks, width, padded = plan
    if source.shape[axis] != blocks * width:
        raise ValueError(
            f"cannot pad axis {axis} of a tensor of shape {tuple(source.shape)}: expected {blocks} blocks of {width}"
        )
    split = source.reshape(*source.shape[:axis], blocks, width, *source.shape[axis + 1 :])
    after = split.dim() - axis - 2
    widened = F.pad(split, (0, 0) * after + (0, padded - width))
    return widened.flatten(axis, axis + 1)


def spread_weight(weight: Tensor, *, rows: Spread | None, columns: Spread | None, turned: bool = False) -> Tensor:
    """Zero-pads a Linear weight ``[out, in]`` along both axes; ``None`` leaves an axis alone.

    Args:
        weight: ``[out, in]``, or ``[in, out]`` when ``turned``.
        rows: how the output features are padded.
        columns: how the input features are padded.
        turned: the weight lies the other way round (``Conv1D``).

    Returns:
        ``[padded out, padded in]``.
    """
    if turned:
        weight = weight.t()
    if rows is not None:
        weight = spread(weight, 0, rows)
    if columns is not None:
        weight = spread(weight, 1, columns)
    return weight.contiguous()


def spread_vector(vector: Tensor, *, plan: Spread) -> Tensor:
    """Zero-pads a bias or a norm weight ``[n]``."""
    return spread(vector, 0, plan).contiguous()


def spread_table(table: Tensor, *, plan: Spread) -> Tensor:
    """Zero-pads the rows of an embedding table ``[entries, n]`` at their end."""
    return spread(table, 1, plan).contiguous()


def real_lanes(vector: Tensor, *, plan: Spread) -> Tensor:
    """Ones where a padded vector holds real elements, zeros where it holds padding."""
    return spread(torch.ones_like(vector), 0, plan)


def features(module: nn.Module) -> tuple[int, int] | None:
    """(input, output) features of a module that multiplies by one weight; None for any other.

    Next to ``nn.Linear`` this is the ``Conv1D`` of transformers (GPT-2), whose weight is ``[in, out]``.
    """
    if isinstance(module, nn.Linear):
        return module.in_features, module.out_features
    return (module.nx, module.nf) if isinstance(module, Conv1D) else None


class PaddedLinear(nn.Module):
    """Mixin for ``nn.Linear`` and ``Conv1D``: multiplies by zero-padded copies of the weight and the bias.

    Attributes:
        padded_weight: derived.
        padded_bias: derived; None when there is no bias.
    """

    padded_weight: Tensor
    padded_bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """``[..., padded in] -> [..., padded out]``, in the dtype of the weight."""
        return F.linear(input, self.padded_weight, self.padded_bias)


def pad_linear(
    patcher: PatcherProtocol, linear: nn.Module, *, rows: Spread | None = None, columns: Spread | None = None
) -> None:
    """Makes a product work on padded sizes; a second call adds to the first (heads on one axis, width on the other).

    Args:
        patcher: records the steps.
        linear: its parameters stay as they are.
        rows: how the output features are padded.
        columns: how the input features are padded.
    """
    known: tuple[Spread | None, Spread | None] = linear.__dict__.get("padding_plan", (None, None))
    plan = (rows or known[0], columns or known[1])
    if not isinstance(linear, PaddedLinear):
        patcher.swap_class(linear, PaddedLinear)
    patcher.set_attr(linear, "padding_plan", plan)
    turned = isinstance(linear, Conv1D)
    patcher.derive(linear, "padded_weight", ("weight",), spread_weight, rows=plan[0], columns=plan[1], turned=turned)
    if linear._parameters.get("bias") is None:
        patcher.set_attr(linear, "padded_bias", None)
    elif plan[0] is None:
        patcher.derive(linear, "padded_bias", ("bias",), copy_of)
    else:
        patcher.derive(linear, "padded_bias", ("bias",), spread_vector, plan=plan[0])


def copy_of(source: Tensor) -> Tensor:
    """The tensor itself, for a derived value that needs no padding."""
    return source.clone()


def has_plan(module: nn.Module, axis: int) -> bool:
    """True when the product is padded already along its output (0) or input (1) features."""
    plan: tuple[Any, Any] = module.__dict__.get("padding_plan", (None, None))
    return plan[axis] is not None
