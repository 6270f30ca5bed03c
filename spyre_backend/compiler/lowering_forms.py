"""The device's own lowerings of stage 3: matmul, reductions, norms, cat and the rest, as Inductor IR."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._inductor import ir
from torch._inductor import lowering as stock
from torch._inductor.ir import TensorBox
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.virtualized import ops

from spyre_backend.compiler.errors import refuse
from spyre_backend.compiler.lowering_indexed import lower_index_copy, lower_index_select
from spyre_backend.compiler.trace import static

aten = torch.ops.aten


def _reduction(
    kind: str,
    x: TensorBox,
    axes: Sequence[int],
    keepdim: bool,
    dtype: torch.dtype | None = None,
    inner: Callable[[Any], Any] | None = None,
) -> TensorBox:
    """A device reduction of ``x`` over ``axes``; never split, never unrolled (D4.4).  A number is its own reduction."""
    size = list(x.get_size())
    axes = sorted({a % len(size) for a in axes}) if size else []
    kept = [i for i in range(len(size)) if i not in axes]
    load = x.make_loader()

    def inner_fn(index: Sequence[Any], rindex: Sequence[Any]) -> Any:
        place: list[Any] = [None] * len(size)
        for axis, value in zip(axes, rindex, strict=True):
            place[axis] = value
        wanted = [v for i, v in enumerate(index) if i not in axes] if keepdim else list(index)
        for axis, value in zip(kept, wanted, strict=True):
            place[axis] = value
        loaded = load(place)
        return loaded if inner is None else inner(loaded)

    ranges = [1 if i in axes else n for i, n in enumerate(size) if keepdim or i not in axes]
    if not axes:
        return _make_pointwise(x, lambda index: inner_fn(index, ()), ranges, dtype or x.get_dtype())
    return _make_reduction(x, kind, ranges, [size[a] for a in axes], inner_fn, dtype or x.get_dtype())


def _make_reduction(
    like: TensorBox, kind: str, ranges: list[Any], reduced: list[Any], inner_fn: Callable[..., Any], dtype: torch.dtype
) -> TensorBox:
    if 0 in ranges or 0 in reduced:
        return _of_nothing(like, kind, ranges, dtype)
    node = ir.Reduction(
        device=like.get_device_or_error(),
        dtype=dtype,
        inner_fn=inner_fn,
        ranges=ranges,
        reduction_ranges=reduced,
        reduction_type=kind,  # type: ignore[arg-type]  # the device's own kinds
        src_dtype=like.get_dtype(),
        reduction_hint=ReductionHint.DEFAULT,
    )
    return TensorBox.create(node)


OF_NOTHING = {"sum": 0.0, "batchmatmul": 0.0, "mean": float("nan"), "prod": 1.0, "any": 0.0}
"""What reductions of no elements give, as PyTorch defines it."""


def _of_nothing(like: TensorBox, kind: str, ranges: list[Any], dtype: torch.dtype) -> TensorBox:
    """A reduction of an empty tensor: its value is a constant; maximum and minimum have none unless the result is empty
    too."""
    if kind not in OF_NOTHING and 0 not in ranges:
        raise refuse("reduction-stick", op=kind, detail=f"{kind} of no elements", shapes=[like.get_size()])
    value = OF_NOTHING.get(kind, 0.0)
    filled = value if dtype.is_floating_point else bool(value) if dtype is torch.bool else int(value)
    return _make_pointwise(like, lambda index: ops.constant(filled, dtype), ranges, dtype)


def _pointwise(name: str, x: TensorBox, *others: TensorBox, **attrs: Any) -> TensorBox:
    loaders = [t.make_loader() for t in (x, *others)]

    def inner_fn(index: Sequence[Any]) -> Any:
        return getattr(ops, name)(*(load(index) for load in loaders), **attrs)

    return _make_pointwise(x, inner_fn, x.get_size(), x.get_dtype())


def _make_pointwise(
    like: TensorBox, inner_fn: Callable[..., Any], ranges: Sequence[Any], dtype: torch.dtype
) -> TensorBox:
    return ir.Pointwise.create(device=like.get_device_or_error(), dtype=dtype, inner_fn=inner_fn, ranges=list(ranges))


def _axes(x: TensorBox, dim: Any) -> list[int]:
    rank = len(x.get_size())
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return list(range(rank))
    return [dim] if isinstance(dim, int) else list(dim)


def lower_sum(x: TensorBox, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorBox:
    """aten.sum; integers and bool are summed as int64, as PyTorch does."""
    if dtype is None and not x.get_dtype().is_floating_point:
        dtype = torch.int64
    if dtype is not None and dtype != x.get_dtype():
        x = stock.to_dtype(x, dtype)
        x.realize()
    return _reduction("sum", x, _axes(x, dim), keepdim)


def lower_mean(x: TensorBox, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorBox:
    """aten.mean: sum times 1/n in one device operation (D5.3)."""
    if dtype is not None and dtype != x.get_dtype():
        x = stock.to_dtype(x, dtype)
        x.realize()
    return _reduction("mean", x, _axes(x, dim), keepdim)


def lower_amax(x: TensorBox, dim: Any = (), keepdim: bool = False) -> TensorBox:
    """aten.amax."""
    return _reduction("max", x, _axes(x, dim), keepdim)


def lower_amin(x: TensorBox, dim: Any = (), keepdim: bool = False) -> TensorBox:
    """aten.amin."""
    return _reduction("min", x, _axes(x, dim), keepdim)


def lower_prod(x: TensorBox, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> TensorBox:
    """aten.prod (D5.3: not along the stick; the layout stage refuses that)."""
    return _reduction("prod", x, _axes(x, dim), keepdim)


def lower_any(x: TensorBox, dim: Any = None, keepdim: bool = False) -> TensorBox:
    """aten.any."""
    return _reduction("any", x, _axes(x, dim), keepdim, torch.bool)


def lower_matmul(a: TensorBox, b: TensorBox) -> TensorBox:
    """aten.mm and aten.bmm over (*batch, M, N, K); K == 1 is a multiplication (D5.1)."""
    a.realize()
    b.realize()
    *batch, rows, width = a.get_size()
    columns = b.get_size()[-1]
    load_a, load_b = a.make_loader(), b.make_loader()
    ranges = [*batch, rows, columns]
    if width == 1:
        return _make_pointwise(
            a, lambda i: ops.mul(load_a([*i[:-1], 0]), load_b([*i[:-2], 0, i[-1]])), ranges, a.get_dtype()
        )

    def inner_fn(index: Sequence[Any], rindex: Sequence[Any]) -> Any:
        *outer, m, n = index
        (k,) = rindex
        return ops.mul(load_a([*outer, m, k]), load_b([*outer, k, n]))

    return _make_reduction(a, "batchmatmul", ranges, [width], inner_fn, a.get_dtype())


def lower_layer_norm(
    x: TensorBox, normalized_shape: Sequence[int], weight: TensorBox | None, bias: TensorBox | None, eps: float
) -> tuple[TensorBox, TensorBox, TensorBox]:
    """aten.native_layer_norm as the device does it: exx2, layernormscale, layernormnorm (D5.3)."""
    x.realize()
    mean = _realized(_reduction("exx2_mean", x, [-1], True))
    square = _realized(_reduction("exx2_meansq", x, [-1], True))
    scale = _realized(_pointwise("layernormscale", mean, square, eps=eps))
    size = x.get_size()
    ones = (
        weight
        if weight is not None
        else _realized(stock.full([size[-1]], 1.0, dtype=x.get_dtype(), device=x.get_device()))
    )
    zeros = (
        bias if bias is not None else _realized(stock.full([size[-1]], 0.0, dtype=x.get_dtype(), device=x.get_device()))
    )
    wide = [stock.expand(t, size) for t in (mean, scale, ones, zeros)]
    return _pointwise("layernormnorm", x, *wide), mean, scale


def _realized(x: TensorBox) -> TensorBox:
    x.realize()
    return x


def lower_clamp(x: TensorBox, low: Any = None, high: Any = None) -> TensorBox:
    """aten.clamp with scalar bounds: clip (D5.2)."""
    if isinstance(low, TensorBox) or isinstance(high, TensorBox):
        for bound, fn in ((low, aten.maximum.default), (high, aten.minimum.default)):
            x = x if bound is None else _realized(stock.lowerings[fn](x, bound))
        return x
    attrs = {name: float(value) for name, value in (("min", low), ("max", high)) if value is not None}
    return _pointwise("clip", x, **attrs)


def lower_cat(tensors: Sequence[TensorBox], dim: int = 0) -> Any:
    """aten.cat: an empty tensor and one slice copy for each input (D2.4)."""
    kept = [t for t in tensors if not (len(t.get_size()) == 1 and t.get_size()[0] == 0)] or list(tensors)
    dtype = kept[0].get_dtype()
    for t in kept[1:]:
        dtype = torch.promote_types(dtype, t.get_dtype())
    kept = [_realized(t if t.get_dtype() == dtype else stock.to_dtype(t, dtype)) for t in kept]
    if len(kept) == 1:
        return stock.clone(kept[0])
    return TensorBox(ir.ConcatKernel.create(kept, dim % len(kept[0].get_size())))


def lower_pad(x: TensorBox, pad: Sequence[int], value: float = 0) -> TensorBox:
    """aten.constant_pad_nd: fill and copy, one dim after the other (D5.4); negative pads cut."""
    rank = len(x.get_size())
    for i in range(len(pad) // 2):
        dim = rank - 1 - i
        before, after = pad[2 * i], pad[2 * i + 1]
        size = list(x.get_size())
        if before < 0 or after < 0:
            x = stock.slice_(x, dim, max(0, -before), size[dim] - max(0, -after))
            before, after = max(0, before), max(0, after)
            size = list(x.get_size())
        pieces = [x]
        for amount, place in ((before, 0), (after, len(pieces))):
            if amount:
                shape = [*size[:dim], amount, *size[dim + 1 :]]
                filled = stock.full(shape, value, dtype=x.get_dtype(), device=x.get_device())
                pieces.insert(0 if place == 0 else len(pieces), filled)
        x = _realized(lower_cat(pieces, dim)) if len(pieces) > 1 else x
    return x


def lower_slice_scatter(
    x: TensorBox, src: TensorBox, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    """aten.slice_scatter with unit step: the rows before, the source, the rows after (D5.4)."""
    extent = static(x.get_size()[dim])
    first = 0 if start is None else max(0, start + extent if start < 0 else min(start, extent))
    last = extent if end is None else min(extent, end + extent if end < 0 else end)
    pieces = [src]
    if first > 0:
        pieces.insert(0, stock.slice_(x, dim, 0, first))
    if last < extent:
        pieces.append(stock.slice_(x, dim, last, extent))
    return lower_cat(pieces, dim)


def lower_select_scatter(x: TensorBox, src: TensorBox, dim: int, index: int) -> Any:
    """aten.select_scatter: slice_scatter of one row."""
    place = index % static(x.get_size()[dim])
    return lower_slice_scatter(x, stock.unsqueeze(src, dim), dim, place, place + 1)


def lower_pow(x: TensorBox, exponent: float) -> TensorBox:
    """aten.pow with a small integer exponent, by squaring, where the release has it (2026.09)."""
    return _pointwise("powi", x, exponent=int(exponent))


def lower_topk(
    x: TensorBox, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[TensorBox, TensorBox]:
    """aten.topk along the stick: values, and indices (D5.3)."""
    x.realize()
    *outer, width = x.get_size()
    load = x.make_loader()

    def inner_fn(index: Sequence[Any], rindex: Sequence[Any]) -> Any:
        return load([*index[:-1], *rindex])

    made = [
        _make_reduction(x, kind, [*outer, k], [width], inner_fn, dtype)
        for kind, dtype in (("topkvalue", x.get_dtype()), ("topkindex", torch.int64))
    ]
    return made[0], made[1]


def _unary(name: str) -> Callable[..., TensorBox]:
    def lower(x: TensorBox, *args: Any, **kwargs: Any) -> TensorBox:
        return _pointwise(name, x)

    return lower


def lower_softplus(x: TensorBox, beta: float = 1, threshold: float = 20) -> Any:
    """aten.softplus; beta other than 1 is scaled around it (#1882 in D1.5)."""
    attrs = {} if threshold == 20 else {"threshold": float(threshold)}
    if beta == 1:
        return _pointwise("softplus", x, **attrs)
    scaled = _realized(stock.lowerings[aten.mul.Tensor](x, beta))
    return stock.lowerings[aten.mul.Tensor](_realized(_pointwise("softplus", scaled, **attrs)), 1 / beta)


def lower_logical_not(x: TensorBox) -> Any:
    """aten.logical_not: arithmetic on bool, a comparison with zero otherwise (D5.2)."""
    if x.get_dtype() is torch.bool:
        return _pointwise("logical_not", x)
    return stock.lowerings[aten.eq.Scalar](x, 0)


def lower_avg_pool2d(
    x: TensorBox, kernel_size: Sequence[int], stride: Sequence[int] = (), *_: Any, **__: Any
) -> TensorBox:
    """aten.avg_pool2d without padding: the mean of each window, channels along the stick (D5.3)."""
    x.realize()
    window = [int(n) for n in (kernel_size if len(kernel_size) == 2 else [kernel_size[0]] * 2)]
    step = [int(n) for n in (stride or window)]
    step = step if len(step) == 2 else step * 2
    *outer, height, width = (static(n) for n in x.get_size())
    load = x.make_loader()

    def inner_fn(index: Sequence[Any], rindex: Sequence[Any]) -> Any:
        *front, row, column = index
        return load([*front, row * step[0] + rindex[0], column * step[1] + rindex[1]])

    extents = [(n - k) // s + 1 for n, k, s in zip((height, width), window, step, strict=True)]
    return _make_reduction(x, "avgpoolfwd", [*outer, *extents], window, inner_fn, x.get_dtype())


def lower_flip(x: TensorBox, dims: Sequence[int]) -> TensorBox:
    """aten.flip: an index_select, which the operator table sends to the host or refuses before this."""
    raise refuse("indirect-access", op="aten.flip.default", detail="flip has no device form", shapes=[x.get_size()])


LOWERINGS: dict[Any, Callable[..., Any]] = {
    aten.mm.default: lower_matmul,
    aten.bmm.default: lower_matmul,
    aten.sum.default: lower_sum,
    aten.sum.dim_IntList: lower_sum,
    aten.mean.default: lower_mean,
    aten.mean.dim: lower_mean,
    aten.amax.default: lower_amax,
    aten.amin.default: lower_amin,
    aten.max.default: lower_amax,
    aten.min.default: lower_amin,
    aten.prod.default: lower_prod,
    aten.prod.dim_int: lower_prod,
    aten.any.default: lower_any,
    aten.any.dim: lower_any,
    aten.any.dims: lower_any,
    aten.native_layer_norm.default: lower_layer_norm,
    aten.clamp.default: lower_clamp,
    aten.clamp.Tensor: lower_clamp,
    aten.clamp_min.default: lower_clamp,
    aten.clamp_max.default: lambda x, high: lower_clamp(x, None, high),
    aten.cat.default: lower_cat,
    aten.constant_pad_nd.default: lower_pad,
    aten.slice_scatter.default: lower_slice_scatter,
    aten.select_scatter.default: lower_select_scatter,
    aten.pow.Tensor_Scalar: lower_pow,
    aten.topk.default: lower_topk,
    aten.logical_not.default: lower_logical_not,
    aten.index_select.default: lower_index_select,
    aten.flip.default: lower_flip,
    aten.index_copy.default: lower_index_copy,
    aten.avg_pool2d.default: lower_avg_pool2d,
    aten.gelu.default: _unary("gelu"),
    aten.silu.default: _unary("silu"),
    aten.softplus.default: lower_softplus,
}
