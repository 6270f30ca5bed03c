"""How far the device may be from float64: derived from its rounding, by random rounding errors of the worst size.

The reference runs in float64 several times.  Each time, every operation that computes gets an error of exactly one
rounding, with a random sign for each element: relative u = 2^-10 in 16 bits (nine fraction bits, D1.5), 2^-23 in fp32.
Sums get what blocked accumulation costs: two roundings for each block of 64 terms, relative to the sum of magnitudes
(D6.5).  Operations that only move, choose or compare elements get nothing.  The largest deviation of the runs, doubled
because the device has its own signs, is the allowance, and at least what the last rounding alone does; for one
operation that is 2^-9, one unit in the last place.

Functions that the device takes apart are taken apart here too, since each part rounds (D5.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

RUNS = 8
BLOCK = 64
UNIT = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-10, torch.float32: 2.0**-23}
"""Rounding of a device result by dtype (D1.5, D1.6)."""
ON_HOST = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 0.0}
"""Rounding of the copy to the host."""
FLOOR = {torch.float16: 2.0**-14, torch.bfloat16: 2.0**-24, torch.float32: 2.0**-24}
"""Absolute: exp gives 2^-24 at least, and fp16 subnormals lose half in every copy (D1.5)."""

aten = torch.ops.aten
_EXACT = """
abs amax amin any all argmax argmin as_strided bitwise_and bitwise_not cat ceil clamp clamp_min clamp_max
clone constant_pad_nd copy_ embedding empty empty_like empty_strided eq expand fill_ floor full full_like gather ge
gt index index_select le logical_and logical_not lt masked_fill max maximum min minimum ne neg new_full new_ones
new_zeros ones ones_like relu repeat scalar_tensor select_scatter sign slice_scatter split stack tril triu where
zero_ zeros zeros_like _to_copy
"""
EXACT = frozenset(_EXACT.split())
SUMS = frozenset({"mm", "bmm", "addmm", "baddbmm", "sum", "mean", "cumsum", "mv", "addmv", "dot", "convolution"})


def _softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    power = (x - x.amax(dim, keepdim=True)).exp()
    return power / power.sum(dim, keepdim=True)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    variance = (x * x).mean(dims, keepdim=True) - mean * mean
    scale = (variance + eps).rsqrt()
    normal = (x - mean) * scale
    normal = normal if weight is None else normal * weight
    return normal if bias is None else normal + bias, mean, scale


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, space: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    normal, mean, scale = _layer_norm(x.reshape(n, groups, -1), [c // groups * space], None, None, eps)
    normal = normal.reshape(n, c, -1)
    normal = normal if weight is None else normal * weight[:, None]
    normal = normal if bias is None else normal + bias[:, None]
    return normal.reshape(x.shape), mean, scale


def _vector_norm(x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    if order != 2:
        return _like_norm(x, order, dim, keepdim)
    dims = list(range(x.dim())) if dim is None else list(dim)
    return (x * x).sum(dims, keepdim=keepdim).sqrt() if x.dim() else x.abs()


def _like_norm(x: Tensor, order: float, dim: Any, keepdim: bool) -> Tensor:
    result: Tensor = aten.linalg_vector_norm(x, order, dim, keepdim)
    return result


PARTS: dict[Any, Callable[..., Any]] = {
    aten._softmax.default: _softmax,
    aten._log_softmax.default: _log_softmax,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten.silu.default: lambda x: x * x.sigmoid(),
}


class RandomRounding(TorchDispatchMode):
    """Gives every computed element an error of one rounding; ``unit`` 0 only takes functions apart."""

    def __init__(self, unit: float, generator: torch.Generator) -> None:
        super().__init__()
        self.unit, self.generator = unit, generator

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in PARTS and args[0].numel():
            with self:
                return PARTS[func](*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        if func is aten.linalg_vector_norm.default and (len(args) < 2 or args[1] == 2):
            with self:
                return _vector_norm(*args, **kwargs)
        if name in ("add", "sub") and kwargs.get("alpha", 1) != 1:
            with self:
                return getattr(torch, name)(args[0], args[1] * kwargs["alpha"])
        size = _magnitude(func, name, args, kwargs) if name in SUMS else None
        result = func(*args, **kwargs)
        if name in EXACT or name.rstrip("_") in EXACT or func.is_view:
            return result
        rounded = pytree.tree_map_only(Tensor, lambda t: self._rounded(t, size), result)
        return args[0].copy_(rounded) if func._schema.is_mutable and result is args[0] else rounded

    def _rounded(self, x: Tensor, size: Tensor | None) -> Tensor:
        if not x.is_floating_point() or x.numel() == 0 or self.unit == 0:
            return x
        signs = torch.randint(0, 2, x.shape, generator=self.generator).to(x.dtype) * 2 - 1
        width = x.abs() if size is None else size
        return torch.where(x.isfinite() & width.isfinite(), x + signs * self.unit * width, x)


def _magnitude(func: Any, name: str, args: Any, kwargs: Any) -> Tensor:
    """The same sum of magnitudes, times two roundings for each block of its terms."""
    positive = pytree.tree_map_only(Tensor, lambda t: t.abs() if t.is_floating_point() else t, (args, kwargs))
    size: Tensor = func(*positive[0], **positive[1])
    tensors = [a for a in args if isinstance(a, Tensor)]
    first = tensors[1] if name in ("addmm", "baddbmm", "addmv") else tensors[0]
    terms = first.shape[-1] if name.endswith(("mm", "mv", "dot")) and first.dim() else first.numel()
    return 2 * math.ceil(terms / BLOCK) * size if terms else size


@dataclass(frozen=True, slots=True)
class Allowed:
    """Float64 (or integer, or bool) values that the exact reference and the random runs gave for one result."""

    exact: Tensor
    runs: tuple[Tensor, ...]
    unit: float
    unit_on_host: float
    floor: float

    def problem(self, got: Tensor, host: Tensor) -> str:
        """Empty when ``got`` is within the allowance or what ``host``, the CPU's own result, is; otherwise where not.

        The CPU may be further from float64 than the allowance: its bf16 ``arange`` rounds at every step.
        """
        if got.shape != self.exact.shape:
            return f"shape {tuple(got.shape)} instead of {tuple(self.exact.shape)}"
        if not self.exact.is_floating_point():
            good = torch.stack([got == run.to(got.dtype) for run in (self.exact, *self.runs)]).any(0)
            return "" if bool(good.all()) else f"{int((~good).sum())} of {good.numel()} integers or bools differ"
        value, exact = got.double(), self.exact
        spread = torch.stack([(run - exact).abs().nan_to_num() for run in self.runs]).amax(0)
        spread = torch.where(spread > 0, spread.maximum(self.unit * exact.abs()), 0.0)
        bound = 2 * spread + self.unit_on_host * exact.abs() + torch.where(spread > 0, self.floor, 0.0)
        same = (value == exact) | (got == host) | (value.isnan() & exact.isnan()) | _beyond(got, exact, bound)
        bad = ~(same | ((value - exact).abs() <= bound))
        if not bool(bad.any()):
            return ""
        place = tuple(int(i) for i in bad.nonzero()[0])
        worst = f"{value[place]:.6g} at {place} instead of {exact[place]:.6g} +- {bound[place]:.3g}"
        return f"{worst} ({int(bad.sum())} of {bad.numel()})"


def _beyond(got: Tensor, exact: Tensor, bound: Tensor) -> Tensor:
    """Infinity is right where the dtype cannot hold what is allowed."""
    most = torch.finfo(got.dtype).max
    return got.isinf() & (exact.abs() + bound >= most) & (got.sign().double() == exact.sign())


def allowed(function: Callable[[], Any], dtypes: Sequence[torch.dtype], results: Sequence[torch.dtype]) -> list[Any]:
    """Run ``function`` (a float64 reference) exactly and with random rounding.

    Args:
        function: returns a tree of tensors and numbers.
        dtypes: floating dtypes that the device computes in; the coarsest counts.
        results: dtypes of the tensors of the result, as the device returns them.

    Returns:
        For each leaf of the result an `Allowed`, or the plain value of what is no tensor.
    """
    unit = max((UNIT.get(dtype, 0.0) for dtype in (*dtypes, *results)), default=0.0)
    generator = torch.Generator().manual_seed(9)
    trees = []
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        for run in range(RUNS + 1):
            with RandomRounding(unit if run else 0.0, generator):
                trees.append(pytree.tree_leaves(function()))
    found: list[Any] = []
    kinds = iter(results)
    for leaf, *others in zip(*trees, strict=True):
        if not isinstance(leaf, Tensor):
            found.append(leaf)
            continue
        kind = next(kinds)
        floor = FLOOR.get(kind, 0.0)
        found.append(Allowed(leaf, tuple(others), unit, ON_HOST.get(kind, 0.0), floor))
    return found
