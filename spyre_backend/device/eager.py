"""Eager kernels: each operator the device has is compiled on first use for its shapes, as a program of its own (D3.1).

Operators without an entry here run on the CPU, are counted and warn once (``csrc/fallback.cpp``).  Integer and bool
arithmetic stays on the host too: the device has next to none of it (D1.6).  What the release refuses in eager mode is
refused here as well, not quietly computed on the host.
"""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from spyre_backend import _C, capabilities
from spyre_backend.compiler import decisions, settings
from spyre_backend.device.convolution import convolution
from spyre_backend.errors import SpyreUnsupported

POINTWISE = (
    "add.Tensor",
    "sub.Tensor",
    "mul.Tensor",
    "div.Tensor",
    "maximum",
    "minimum",
    "abs",
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "tanh",
    "floor",
    "sigmoid",
    "relu",
    "silu",
    "softplus",
    "gelu",
    "clamp",
    "eq.Tensor",
    "eq.Scalar",
    "ne.Tensor",
    "ne.Scalar",
    "gt.Tensor",
    "gt.Scalar",
    "ge.Tensor",
    "ge.Scalar",
    "lt.Tensor",
    "lt.Scalar",
    "le.Tensor",
    "le.Scalar",
    "where.self",
    "pow.Tensor_Scalar",
)
IN_PLACE = (
    "add_.Tensor",
    "sub_.Tensor",
    "mul_.Tensor",
    "div_.Tensor",
    "neg_",
    "exp_",
    "relu_",
    "clamp_",
    "pow_.Scalar",
)
OTHERS = (
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "sum.dim_IntList",
    "mean.dim",
    "amax",
    "amin",
    "_softmax",
    "_log_softmax",
    "native_layer_norm",
    "cat",
    "constant_pad_nd",
    "topk",
)

LOOKUPS = ("embedding", "index_select")
"""Rows of a table by index: on the device where the release can, on the host otherwise (D5.4)."""

TRANSFORMS = ("fft_fft", "fft_ifft", "fft_rfft", "fft_irfft", "fft_fft2", "fft_fftn", "fft_rfftn", "fft_irfftn")
"""Fourier transforms: complex numbers have no format on the device (D1.6)."""

REFUSABLE = ("index.Tensor", "index_add", "index_put")
"""Operators that run on the host but for what the release refuses in eager mode (D6.9)."""
REFUSABLE_IN_PLACE = ("index_add_", "index_put_")

_compiled: dict[tuple[Any, ...], Callable[..., Any]] = {}
_lock = threading.RLock()
_library: torch.library.Library | None = None


def install() -> None:
    """Register the kernels with the dispatcher (idempotent)."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for name in (*POINTWISE, *OTHERS):
        _implement(_library, name, _functional(_overload(name)), "PrivateUse1")
    for name in IN_PLACE:
        _implement(_library, name, _in_place(_overload(name)), "PrivateUse1")
    _install_lookups(_library)
    for name in REFUSABLE:
        _implement(_library, name, _refusable(_overload(name)), "PrivateUse1")
    for name in REFUSABLE_IN_PLACE:
        _implement(_library, name, _refusable_in_place(_overload(name)), "PrivateUse1")
    _implement(_library, "convolution_overrideable", convolution, "PrivateUse1")
    for key in ("PrivateUse1", "AutogradPrivateUse1"):
        _implement(_library, "scaled_dot_product_attention", _attention, key)
        for name in TRANSFORMS:
            _implement(_library, name, _refused_transform(name), key)


def _implement(
    library: torch.library.Library, name: str, kernel: Callable[..., Any], key: str, *, with_keyset: bool = False
) -> None:
    """Register a kernel that Dynamo leaves alone: between two graphs, it would trace the compiler at work in it."""
    hidden = torch._disable_dynamo(kernel)  # type: ignore[attr-defined]
    library.impl(name, hidden, key, with_keyset=with_keyset)  # type: ignore[no-untyped-call]


def _attention(*args: Any, **kwargs: Any) -> Tensor:
    """Attention in the form the compiler gives it (D5.1); differentiable, since its parts are."""
    from spyre_backend.compiler.decompositions import scaled_dot_product_attention

    return scaled_dot_product_attention(*args, **kwargs)


def _refused_transform(name: str) -> Callable[..., Tensor]:
    def kernel(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        from spyre_backend.compiler.decompositions import refused

        detail = "Spyre backend does not support dtype complex32, which a Fourier transform gives"
        result: Tensor = refused(x, f"aten.{name}.default", "dtype-unsupported", detail)
        return result

    return kernel


def _overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.partition(".")
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet), overload or "default")
    return found


def _tensors(args: Any, kwargs: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.arg_tree_leaves(*args, **kwargs) if isinstance(leaf, Tensor)]


def _functional(op: torch._ops.OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        tensors = _tensors(args, kwargs)
        _check_devices(op, tensors)
        if not _for_device(tensors):
            return _on_host(op, args, kwargs)
        return run(op, args, kwargs)

    kernel.__name__ = f"spyre_{op.__name__}"
    return kernel


def _install_lookups(library: torch.library.Library) -> None:
    """Put the device's kernels in front of those of the native part, which gather rows on the host."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*may also be overridden")
        for name in LOOKUPS:
            op = _overload(name)
            kernel = _lookup(op, torch.library.get_kernel(op, "PrivateUse1"))
            _implement(library, name, kernel, "PrivateUse1", with_keyset=True)


def _lookup(op: torch._ops.OpOverload, on_host: Any) -> Callable[..., Any]:
    def kernel(keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        native = capabilities.current().policy(op).support(eager=True) == "native"
        if native and _for_device(_tensors(args, kwargs)):
            return run(op, args, kwargs)
        return on_host.call_boxed(keys, *args, **kwargs)

    kernel.__name__ = f"spyre_{op.__name__}"
    return kernel


def _in_place(op: torch._ops.OpOverload) -> Callable[..., Any]:
    functional = _functional_of(op)

    def kernel(target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        tensors = _tensors((target, *args), kwargs)
        _check_devices(op, tensors)
        call = run if _for_device(tensors) else _on_host
        return target.copy_(call(functional, (target, *args), kwargs))

    kernel.__name__ = f"spyre_{op.__name__}"
    return kernel


def _refusable(op: torch._ops.OpOverload) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _last_writer_wins(op, args, kwargs):
            _refuse_in_eager(op, args, kwargs)
        elif _on_device(op, _tensors(args, kwargs)):
            return _on_host(*_overwriting(op, args, kwargs))
        return _on_host(op, args, kwargs)

    return kernel


def _last_writer_wins(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether #4411 applies: a sum at repeated indices, which this bug does not refuse but gets wrong (D2.8)."""
    if not capabilities.current().settings.bug("issue-4411"):
        return False
    return op is torch.ops.aten.index_add.default or bool([*args, False][3] or kwargs.get("accumulate", False))


def _overwriting(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> tuple[torch._ops.OpOverload, Any, Any]:
    """The call with repeated indices that does not accumulate: every index adds to what was there before."""
    x, *rest = args
    if op is torch.ops.aten.index_add.default:
        dim, index, values = rest[:3]
        values = values * kwargs.get("alpha", 1) + x.index_select(dim, index)
        return torch.ops.aten.index_copy.default, (x, dim, index, values), {}
    indices, values = rest[:2]
    return (
        torch.ops.aten.index_put.default,
        (x, indices, values + x.cpu()[tuple(i.cpu() for i in indices)].to(x.device)),
        {},
    )


def _refusable_in_place(op: torch._ops.OpOverload) -> Callable[..., Any]:
    functional = _refusable(_functional_of(op))

    def kernel(target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return target.copy_(functional(target, *args, **kwargs))

    return kernel


def _refuse_in_eager(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> None:
    """Raise the release's refusal of ``op`` on floating data; a boolean mask selects on the host (D5.4)."""
    policy = capabilities.current().policy(op)
    tensors = _tensors(args, kwargs)
    masks = any(t.dtype is torch.bool for t in tensors[1:])
    if policy.support(eager=True) != "unsupported" or masks or not args[0].dtype.is_floating_point:
        return
    raise SpyreUnsupported(
        op=str(op),
        rule=policy.rule,
        shapes=tuple(tuple(t.shape) for t in tensors),
        dtypes=tuple(str(t.dtype).removeprefix("torch.") for t in tensors),
        hint=policy.hint or capabilities.current().rule(policy.rule).hint,
        detail=f"not available in eager mode in release {capabilities.current().release} ({policy.source})",
    )


def _functional_of(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    packet, _, overload = str(op).removeprefix("aten.").partition(".")
    overload = "Tensor_Scalar" if packet == "pow_" else overload
    found: torch._ops.OpOverload = getattr(getattr(torch.ops.aten, packet.rstrip("_")), overload)
    return found


def _check_devices(op: torch._ops.OpOverload, tensors: list[Tensor]) -> None:
    """Raise RuntimeError, as other devices do, when operands lie on different ones; host scalars may."""
    devices = sorted({str(t.device) for t in tensors if t.device.type == "spyre" or t.dim() > 0})
    if len(devices) > 1:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but {op} got tensors on {' and '.join(devices)}; "
            "move them with .to()"
        )


def _for_device(tensors: list[Tensor]) -> bool:
    """Whether the device computes this call: some tensors are floating and none is empty."""
    return any(t.dtype.is_floating_point for t in tensors) and all(t.numel() > 0 for t in tensors)


def _on_host(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """Run on the CPU, counted as a fallback."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    seen = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    host = [leaf.cpu() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    host_args, host_kwargs = pytree.tree_unflatten(host, spec)
    result = op(*host_args, **host_kwargs)
    device = next((t.device for t in seen if t.device.type == "spyre"), torch.device("spyre"))
    floating = any(t.dtype.is_floating_point for t in (*seen, *_tensors((result,), {})))
    if all(t.numel() for t in seen):
        _C.count_fallback(str(op), "compute" if floating else "integer")
    return pytree.tree_map_only(Tensor, lambda t: t.to(device), result)


def run(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """Run ``op`` on the device, compiling it for these shapes, strides and scalars if it is new.

    Raises:
        SpyreUnsupported: the release refuses the operator, or this call of it.
    """
    if not _on_device(op, _tensors(args, kwargs)):
        return _on_host(op, args, kwargs)
    _refuse_in_eager(op, args, kwargs)
    leaves, spec = pytree.tree_flatten((args, kwargs))
    leaves = [leaf.item() if isinstance(leaf, Tensor) and leaf.device.type != "spyre" else leaf for leaf in leaves]
    chosen = (capabilities.current().fingerprint, settings.current(), decisions.key())
    key = (*chosen, op, spec, *(_describe(leaf) for leaf in leaves))
    with _lock:
        compiled = _compiled.get(key)
        if compiled is None:
            compiled = _compiled[key] = _compile(op, leaves, spec)
    results = compiled(*(leaf for leaf in leaves if isinstance(leaf, Tensor)))
    return results if isinstance(results, Tensor) or len(op._schema.returns) > 1 else results[0]


def _on_device(op: torch._ops.OpOverload, tensors: list[Tensor]) -> bool:
    """Whether the device computes the call (see :mod:`~spyre_backend.compiler.decisions`)."""
    followed = decisions.active()
    if followed is None:
        return True
    shapes = [tuple(t.shape) for t in tensors]
    if decisions.on_host(op, shapes):
        return False
    followed.graphs += 1
    return decisions.take("operation", "eager", lambda: f"the device computes {op} of {shapes} outside of any graph")


def _describe(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        return leaf.device.index, leaf.dtype, tuple(leaf.shape), leaf.stride(), leaf.storage_offset() % 64
    return type(leaf), str(leaf)


def _graph(op: torch._ops.OpOverload, leaves: list[Any], spec: pytree.TreeSpec) -> torch.fx.GraphModule:
    """An FX graph with this one call: tensors are placeholders, everything else is a constant."""
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(f"x{i}") if isinstance(leaf, Tensor) else leaf for i, leaf in enumerate(leaves)]
    call_args, call_kwargs = pytree.tree_unflatten(nodes, spec)
    result = graph.call_function(op, tuple(call_args), call_kwargs)
    returns = len(op._schema.returns)
    if returns == 1:
        graph.output((result,))
    else:
        graph.output(tuple(graph.call_function(operator.getitem, (result, i)) for i in range(returns)))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def _compile(op: torch._ops.OpOverload, leaves: list[Any], spec: pytree.TreeSpec) -> Callable[..., Any]:
    from torch._guards import tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    from spyre_backend import compiler
    from spyre_backend.compiler.errors import unwrapped

    compiler.register()
    cached = decisions.active() is None
    # Inductor folds constants by running them: this may be inside the compilation of another graph, whose own it is.
    alone = tracing(None)
    with torch.no_grad(), unwrapped(), decisions.ignored(), config.patch(fx_graph_cache=cached), alone:
        examples = [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]
        return _detached(compile_fx(_graph(op, leaves, spec), examples))


def _detached(compiled: Any) -> Callable[..., Any]:
    def call(*tensors: Tensor) -> Any:
        with torch.no_grad():
            return compiled(*(t.detach() for t in tensors))

    return call
