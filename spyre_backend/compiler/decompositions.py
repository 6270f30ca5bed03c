"""Stage 1, decompositions: which aten ops are taken apart before the post-grad graph, on device tensors only (D4.2).

PyTorch keeps one table for all devices.  Every entry that the device treats in its own way is wrapped here: a call
without a ``spyre`` tensor takes the stock decomposition, so other devices see no change.  What an operator becomes is
decided by the capability file: ops listed there as native, fallback or unsupported are kept whole, ops listed as
"decomposed" take the form below if there is one, and the stock form otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from spyre_backend import capabilities
from spyre_backend.compiler.errors import refuse
from spyre_backend.compiler.lowering import LOWERINGS

aten = torch.ops.aten
Decomposition = Callable[..., Any]


def on_device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether any tensor among the arguments (one level of lists deep) lives on the device."""
    for arg in (*args, *kwargs.values()):
        for item in arg if isinstance(arg, (list, tuple)) else (arg,):
            if isinstance(item, Tensor) and item.device.type == "spyre":
                return True
            if isinstance(item, (torch.device, str)) and str(item).partition(":")[0] == "spyre":
                return True
    return False


@torch.library.custom_op("spyre::refused", mutates_args=())
def refused(x: Tensor, op: str, rule: str, detail: str) -> Tensor:
    """Stands in a graph for a call that the device refuses; the post-grad pass raises the refusal.

    Raised while tracing, an exception would lose its type.
    """
    raise refuse(rule, op=op, detail=detail, shapes=[x.shape], dtypes=[x.dtype])


@refused.register_fake
def _(x: Tensor, op: str, rule: str, detail: str) -> Tensor:
    return torch.empty_like(x)


def _refused(x: Tensor, op: str, rule: str, detail: str) -> Tensor:
    marked: Tensor = refused(x, op, rule, detail)
    return marked


def softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """D5.3: amax, sub, exp, sum, div in the input's own dtype (the leak of D1.5 comes from exp)."""
    if half_to_float:
        x = x.to(torch.float32)
    if x.numel() == 0:
        return x.clone()
    shifted: Tensor = (x - x.amax(dim, keepdim=True)).exp()
    return shifted / shifted.sum(dim, keepdim=True)


def log_softmax(x: Tensor, dim: int, half_to_float: bool = False) -> Tensor:
    """D5.3 (row marked as an assumption there): shifted - log(sum(exp(shifted)))."""
    if half_to_float:
        x = x.to(torch.float32)
    if x.numel() == 0:
        return x.clone()
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """D5.1: mm + add; alpha and beta other than 1 become multiplications."""
    product: Tensor = aten.mm.default(a, b)
    if alpha != 1:
        product = product * alpha
    return product + (bias if beta == 1 else bias * beta)


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """D5.1: bmm + add."""
    product: Tensor = aten.bmm.default(a, b)
    if alpha != 1:
        product = product * alpha
    return product + (bias if beta == 1 else bias * beta)


def _shaped(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """A tensor like the product of ``a`` and ``b``, for a refusal to stand on."""
    return torch.zeros((a.shape[0], b.shape[1]), dtype=dtype, device=a.device)


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bias: Tensor | None = None,
    scale_result: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    use_fast_accum: bool = False,
) -> Tensor:
    """D5.1: fp8 [M, K] x fp8 [K, N], K in whole sticks of 128, times scales that broadcast.

    The sources name the device's batchmatmulfp8 and its operands' arrangements, but not how it accumulates.  Both
    operands become DL16 here (fp8todl16, exact) and multiply as DL16 does; the scales follow in fp32.
    """
    op, wanted = "aten._scaled_mm.default", out_dtype or torch.float16
    if not a.dtype == b.dtype == torch.float8_e4m3fn:
        detail = f"matmul of {a.dtype} and {b.dtype}: only float8_e4m3fn"
        return _refused(_shaped(a, b, wanted), op, "matmul-dtype", detail)
    entry = capabilities.current().operator(aten._scaled_mm.default)
    multiple = 128 if entry is None else entry.params["k_multiple"]
    if a.shape[1] % multiple:
        detail = f"Could not find any suitable dimension mapping: K={a.shape[1]} is not a multiple of {multiple}"
        return _refused(_shaped(a, b, wanted), op, "matmul-k-stick", detail)
    if scale_result is not None or wanted not in (torch.float16, torch.bfloat16, torch.float32):
        detail = f"no device cast of the result to {wanted}"
        return _refused(_shaped(a, b, wanted), op, "dtype-cast", detail)
    product = aten.mm.default(a.to(torch.float16), b.to(torch.float16)).to(torch.float32)
    scaled: Tensor = (product * scale_a * scale_b).to(wanted)
    return scaled if bias is None else scaled + bias


def rms_norm(x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """D5.3: mean(x*x), rsqrt(mean + eps), mul, in the input's dtype; one normalised dim only."""
    if len(normalized_shape) != 1:
        detail = f"normalized_shape={list(normalized_shape)}"
        return _refused(x, "aten.rms_norm.default", "layer-norm-shape", detail)
    tiny = torch.finfo(x.dtype).eps if eps is None else eps
    normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + tiny)
    return normed if weight is None else normed * weight


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """D5.1: q and k each scaled by sqrt(scale), GQA by expand and flatten, additive mask, softmax, matmul.

    A causal mask is made on the CPU (tril runs there, D5.2); dropout is refused.
    """
    if dropout_p > 0:
        return _refused(query, "aten.scaled_dot_product_attention.default", "dropout", f"dropout_p={dropout_p}")
    if enable_gqa and query.shape[-3] != key.shape[-3]:
        groups = query.shape[-3] // key.shape[-3]
        key, value = (_expand_heads(t, groups) for t in (key, value))
    root = math.sqrt(1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = (query * root) @ (key * root).transpose(-2, -1)
    if is_causal:
        shape = (query.shape[-2], key.shape[-2])
        keep = torch.ones(shape, dtype=torch.bool, device=query.device).tril()
        scores = torch.where(keep, scores, torch.finfo(torch.float16).min / 2)
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            scores = torch.where(attn_mask, scores, torch.finfo(torch.float16).min / 2)
        else:
            scores = scores + attn_mask
    return softmax(scores, -1) @ value


def _expand_heads(x: Tensor, groups: int) -> Tensor:
    batch, heads, length, width = x.shape
    return x[:, :, None].expand(batch, heads, groups, length, width).reshape(batch, heads * groups, length, width)


def ceil(x: Tensor) -> Tensor:
    """D5.2: -floor(-x)."""
    return -torch.floor(-x)


def roll(x: Tensor, shifts: list[int], dims: Sequence[int] = ()) -> Tensor:
    """D5.4 (row marked as an assumption there): slices and cat, one dim after the other; without dims, of all elements
    in a row."""
    if not dims:
        return roll(x.reshape(-1), shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        extent = x.shape[dim]
        cut = (extent - shift) % extent if extent else 0
        if cut:
            x = torch.cat((x.narrow(dim, cut, extent - cut), x.narrow(dim, 0, cut)), dim)
    return x.clone()


def full(size: Sequence[int], value: Any, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """D1.6: a constant in a dtype that the device has no format for is refused; PyTorch would fold it on the device."""
    known = capabilities.current().dtypes.formats.get(str(dtype).removeprefix("torch."))
    if dtype is None or (known is not None and not known.refused):
        return NotImplemented
    empty = aten.empty.memory_format(size, dtype=dtype, **options)
    return _refused(empty, "aten.full.default", "dtype-unsupported", f"no device format for {dtype}")


DEVICE_FORMS: dict[OpOverload, Decomposition] = {
    aten._softmax.default: softmax,
    aten._log_softmax.default: log_softmax,
    aten._safe_softmax.default: lambda x, dim, dtype=None: softmax(x if dtype is None else x.to(dtype), dim),
    aten.addmm.default: addmm,
    aten.baddbmm.default: baddbmm,
    aten._scaled_mm.default: scaled_mm,
    aten.ceil.default: ceil,
    aten.full.default: full,
    aten.roll.default: roll,
}
COMPOSITE_FORMS: dict[OpOverload, Decomposition] = {
    aten.rms_norm.default: rms_norm,
    aten.scaled_dot_product_attention.default: scaled_dot_product_attention,
}


def _wrapped(op: OpOverload, stock: Decomposition | None) -> Decomposition:
    def decompose(*args: Any, **kwargs: Any) -> Any:
        if not on_device(args, kwargs):
            return NotImplemented if stock is None else stock(*args, **kwargs)
        entry = capabilities.current().operator(op)
        refused = entry is not None and entry.compiled in ("fallback", "unsupported")
        if refused or op in LOWERINGS:
            return NotImplemented
        form = DEVICE_FORMS.get(op, stock)
        return NotImplemented if form is None else form(*args, **kwargs)

    decompose.__name__ = f"spyre_{op.__name__}"
    decompose._spyre = True  # type: ignore[attr-defined]
    return decompose


def install(table: dict[Any, Any]) -> None:
    """Wrap the entries of Inductor's decomposition ``table`` that the device treats in its own way (idempotent)."""
    releases = [capabilities.load(name) for name in capabilities.available()]
    for op in {*table, *DEVICE_FORMS}:
        if not isinstance(op, OpOverload) or getattr(table.get(op), "_spyre", False):
            continue
        named = any(release.operator(op) is not None for release in releases)
        if named or op in DEVICE_FORMS or op in LOWERINGS:
            table[op] = _wrapped(op, table.get(op))
    for op, form in COMPOSITE_FORMS.items():
        _install_composite(op, form)


def _install_composite(op: OpOverload, form: Decomposition) -> None:
    """Give a composite op a device form where PyTorch's tracing takes composites apart."""
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    if key in op.py_kernels:
        return

    def decompose(*args: Any, **kwargs: Any) -> Any:
        if on_device(args, kwargs):
            return form(*args, **kwargs)
        return op._op_dk(key, *args, **kwargs)

    op.py_impl(key)(decompose)
