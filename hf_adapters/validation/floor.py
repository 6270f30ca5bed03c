"""The noise floor: a stock model run in the device's number format on the CPU.

`device_format()` makes every float16 and bfloat16 operation on CPU tensors compute as the device would: operands
converted to DL16, the result rounded to DL16, sums and matrix products accumulated in 64-wide DL16 partial sums (D1.5,
D6.5). Both dtypes are DL16 there (D1.6); they differ in what the host rounds away before.
float32 operations stay float32, as on the device (D1.6); those the device has no float32 kernel for (a matrix
product, say) are counted in `FormatLog.off_format`, because the device cannot have run them. No device, no compiler
and no patch take part.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from hf_adapters.validation import dl16, dl16_ops
from hf_adapters.validation.dl16_tensor import DL16Tensor
from spyre_backend.capabilities import Numerics

aten = torch.ops.aten

HEAVY = {
    aten.mm,
    aten.bmm,
    aten.addmm,
    aten.baddbmm,
    aten.addmv,
    aten.mv,
    aten.dot,
    aten.convolution,
    aten.gelu,
    aten.tanh,
    aten.native_layer_norm,
    aten._softmax,
    aten._scaled_dot_product_flash_attention_for_cpu,
    aten._scaled_dot_product_attention_math_for_mps,
    aten.einsum,
    aten.linear,
}
"""The computations a transformer layer consists of; done in another format than DL16 they were not done on the device
(D1.6)."""

HALF = (torch.float16, torch.bfloat16)
"""The dtypes that are DL16 on the device (D1.6)."""

PRODUCTS = {aten.mm, aten.bmm, aten.addmm, aten.baddbmm}

FP32_HEAVY = {aten._softmax, aten.native_layer_norm}
"""Of those, the ones the device can run in float32, by their parts (D1.6)."""

ON_DEVICE = "_holds_dl16"
"""Attribute of a float16 tensor whose values have been converted to DL16 already; see `load`."""

MOVEMENT = {
    aten.clone,
    aten.cat,
    aten.stack,
    aten.index,
    aten.index_select,
    aten.embedding,
    aten.gather,
    aten.repeat,
    aten.flip,
    aten.roll,
    aten.copy,
    aten._unsafe_view,
    aten.contiguous,
    aten.neg,
    aten.abs,
    aten.relu,
    aten.amax,
    aten.amin,
    aten.max,
    aten.min,
    aten.maximum,
    aten.minimum,
    aten.topk,
    aten.sort,
    aten.tril,
    aten.triu,
    aten.masked_select,
    aten.detach,
    aten.alias,
    aten.lift_fresh,
    aten.slice_scatter,
    aten.select_scatter,
}
"""Operations whose results are values of their operands (or their negatives): nothing to round."""

CONSTANTS = {aten.full_like, aten.new_full, aten.fill, aten.masked_fill}
"""Operations that write a number of the program into their result."""


@dataclass(kw_only=True, slots=True)
class FormatLog:
    """What one run in the device's format did."""

    dl16_ops: Counter[str] = field(default_factory=Counter)
    """Operations with a DL16 result, by name."""
    off_format: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Heavy computations on another dtype than the device computes in, by (op, dtype)."""
    products: Counter[frozenset[int]] = field(default_factory=Counter)
    """Multiplications of the matrix products done in DL16, by the sizes of both operands."""


class _DeviceFormatMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs each ATen operation on float16 and bfloat16 tensors in DL16; other dtypes pass through."""

    def __init__(self, settings: Numerics, log: FormatLog) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.settings = settings
        self.log = log

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        leaves = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        narrow = any(leaf.dtype in HALF for leaf in leaves)
        if packet is aten._to_copy:
            return self._cast(func, args, kwargs)
        if not narrow:
            self._note_heavy(packet, leaves)
            return func(*args, **kwargs)
        if not any(isinstance(leaf, DL16Tensor) for leaf in leaves) and (func.is_view or packet in MOVEMENT):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        handler = dl16_ops.HANDLERS.get(packet)
        dtype = _result_dtype(leaves, kwargs)
        inner_args, inner_kwargs = self._to_values(args, dtype), self._to_values(_without_half(kwargs), dtype)
        if dtype not in HALF:
            self._note_heavy(packet, [leaf for leaf in leaves if leaf.dtype not in HALF])
            return func(*inner_args, **inner_kwargs)
        self.log.dl16_ops[str(packet)] += 1
        if packet in PRODUCTS:
            left, right = inner_args[-2:]
            self.log.products[frozenset((*left.shape, *right.shape))] += left.numel() * right.shape[-1]
        if handler is not None:
            out = handler(self.settings, *inner_args, **inner_kwargs)
        else:
            out = func(*inner_args, **inner_kwargs)
            if packet in CONSTANTS:
                out = dl16.constant(out, self.settings)
            elif not (func.is_view or packet in MOVEMENT):
                out = tree_map(self._round, out)
        return tree_map(lambda leaf: _wrap(leaf, dtype), out)

    def _note_heavy(self, packet: Any, leaves: list[Tensor]) -> None:
        if packet not in HEAVY or (packet in FP32_HEAVY and all(leaf.dtype != torch.float64 for leaf in leaves)):
            return
        wide = [leaf for leaf in leaves if leaf.is_floating_point()]
        outer_product = packet in (aten.bmm, aten.mm) and wide[0].shape[-1] == 1
        if wide and not outer_product:
            self.log.off_format[str(packet), str(wide[0].dtype).removeprefix("torch.")] += 1

    def _to_values(self, value: Any, dtype: torch.dtype | None) -> Any:
        """Operands as float32; in bfloat16, scalars such as its own minimum end where DL16 does, as in a copy."""
        limit = self.settings.dl16_max if dtype == torch.bfloat16 else float("inf")

        def inner(leaf: Any) -> Any:
            if isinstance(leaf, float) and limit < abs(leaf) < float("inf"):
                return math.copysign(limit, leaf)
            return self._values(leaf)

        return tree_map(inner, value)

    def _values(self, leaf: Any) -> Any:
        if isinstance(leaf, DL16Tensor):
            return leaf.dl16
        if not isinstance(leaf, Tensor) or leaf.dtype not in HALF:
            return leaf
        base = leaf if leaf._base is None else leaf._base
        if getattr(base, ON_DEVICE, False):
            return leaf.to(torch.float32)
        return dl16.from_host(leaf, self.settings)

    def _round(self, leaf: Any) -> Any:
        return dl16.rounded(leaf, self.settings) if isinstance(leaf, Tensor) and leaf.dtype == torch.float32 else leaf

    def _cast(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        source, target = args[0], kwargs.get("dtype") or args[0].dtype
        if source.dtype in HALF and (isinstance(source, DL16Tensor) or target != source.dtype):
            value = self._values(source)
            return DL16Tensor(value.clone(), target) if target in HALF else func(value, **kwargs)
        if target in HALF and source.dtype not in HALF and source.dtype.is_floating_point:
            wide = source.to(torch.float32)
            if target == torch.bfloat16:
                # Fills of masks end at bfloat16's own minimum, which a copy to the device brings into range (D1.5).
                wide = wide.clamp(-self.settings.dl16_max, self.settings.dl16_max)
            return DL16Tensor(dl16.rounded(wide, self.settings), target)
        return func(*args, **kwargs)

    def _in_place(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        target = args[0]
        dtype = target.dtype if isinstance(target, Tensor) else None
        inner_args, inner_kwargs = self._to_values(args, dtype), self._to_values(_without_half(kwargs), dtype)
        if isinstance(target, DL16Tensor):
            func(target.dl16, *inner_args[1:], **inner_kwargs)
            target.dl16.copy_(dl16.rounded(target.dl16, self.settings))
        elif isinstance(target, Tensor) and target.dtype in HALF:
            wide = target.to(torch.float32)
            func(wide, *inner_args[1:], **inner_kwargs)
            target.copy_(wide)
        else:
            func(*inner_args, **inner_kwargs)
        return target


class _AttentionMode(TorchFunctionMode):
    """Takes `scaled_dot_product_attention` apart before ATen picks a fused CPU kernel that would round only once."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            return dl16_ops.attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


@contextmanager
def device_format(settings: Numerics | None = None) -> Iterator[FormatLog]:
    """Compute float16 and bfloat16 operations on CPU tensors in the device's number format inside the block.

    Plain tensors of these dtypes (weights, inputs, constants) are converted as a host-to-device copy would (D1.5);
    results are `DL16Tensor`.

    Args:
        settings: numerics; those of the release in force when None.

    Yields:
        A log of what ran in the format and what did not.
    """
    log = FormatLog()
    with torch.no_grad(), _AttentionMode(), _DeviceFormatMode(settings or dl16.numerics(), log):
        yield log


def load(weight: Tensor, settings: Numerics | None = None) -> Tensor:
    """A float16 or bfloat16 weight as the device holds it, in its own dtype and not converted again at each use.

    float16 holds every DL16 number of its own normal range; a halved subnormal loses at most 2^-25. A bfloat16 number
    is a DL16 number unless it is outside the range of DL16; a weight with such values is converted at each use.
    """
    held = dl16.from_host(weight, settings)
    same = held.to(weight.dtype)
    if weight.dtype == torch.bfloat16 and not torch.equal(same.to(torch.float32), held):
        return weight
    setattr(same, ON_DEVICE, True)
    return same


def _wrap(leaf: Any, dtype: torch.dtype) -> Any:
    return DL16Tensor(leaf, dtype) if isinstance(leaf, Tensor) and leaf.dtype == torch.float32 else leaf


def _without_half(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {
        key: torch.float32 if isinstance(value, torch.dtype) and value in HALF else value
        for key, value in kwargs.items()
    }


def _result_dtype(leaves: list[Tensor], kwargs: dict[str, Any]) -> torch.dtype:
    """Type promotion among floating operands: tensors with dimensions decide before 0-dimensional ones; an explicit
    dtype wins."""
    explicit: torch.dtype | None = kwargs.get("dtype")
    if explicit is not None:
        return explicit
    floating = [leaf for leaf in leaves if leaf.is_floating_point()]
    deciding = [leaf for leaf in floating if leaf.dim() > 0] or floating
    dtype = deciding[0].dtype
    for leaf in deciding[1:]:
        dtype = torch.promote_types(dtype, leaf.dtype)
    return dtype
