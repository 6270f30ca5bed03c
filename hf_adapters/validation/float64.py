"""Float64 arithmetic for a float32 model, without a float64 copy of it.

Padding, reassociation and rewriting change a float32 result by rounding errors that hide small faults; in float64
they agree to about 1e-13, so a limit of 1e-9 separates the two. Stock code casts inside (`hidden.to(torch.float32)`
in RMSNorm, `softmax(dtype=torch.float32)`), which would bring float32 rounding back: inside `in_float64()` every
floating operation computes in float64 and no cast leads below it. Weights stay float32 and are widened operand by
operand (exact), so the extra memory is one operand at a time; embedding tables are looked up first and only the rows
are widened.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hf_adapters.validation import dl16_ops

aten = torch.ops.aten
NARROW = (torch.float32, torch.float16, torch.bfloat16)
CONVOLUTIONS = {torch.conv1d, torch.conv2d, torch.conv3d}
LOOKUPS = {aten.embedding, aten.index_select, aten.index}


class _Float64Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Widens operands, results of lookups, factories and casts to float64."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {key: torch.float64 if value in NARROW else value for key, value in (kwargs or {}).items()}
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        narrow = any(leaf.dtype in NARROW for leaf in leaves)
        if not leaves or not narrow or func.is_view:
            return tree_map(_widen, func(*args, **kwargs)) if not leaves else func(*args, **kwargs)
        if func.overloadpacket in LOOKUPS:
            return tree_map(_widen, func(*args, **kwargs))
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        return func(*tree_map(_widen, args), **tree_map(_widen, kwargs))

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0]
        if not isinstance(target, Tensor) or target.dtype not in NARROW:
            func(target, *tree_map(_widen, args[1:]), **tree_map(_widen, kwargs))
            return target
        wide = target.to(torch.float64)
        func(wide, *tree_map(_widen, args[1:]), **tree_map(_widen, kwargs))
        target.copy_(wide)
        return target


class _MathAttention(TorchFunctionMode):
    """Takes fused attention apart: its CPU kernel has float32 accumulators of its own."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return dl16_ops.attention(*args, **(kwargs or {}))
        if func in CONVOLUTIONS:
            # They compare the dtypes of input and bias before any operation is dispatched.
            return func(*tree_map(_widen, args), **tree_map(_widen, kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def in_float64() -> Iterator[None]:
    """Compute every floating operation on CPU tensors in float64 inside the block; no gradients."""
    with torch.no_grad(), _MathAttention(), _Float64Mode():  # type: ignore[no-untyped-call]
        yield


def _widen(leaf: Any) -> Any:
    return leaf.to(torch.float64) if isinstance(leaf, Tensor) and leaf.dtype in NARROW else leaf
