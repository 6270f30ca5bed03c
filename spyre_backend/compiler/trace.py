"""Reading one of Inductor's realised loop bodies: which loads, device functions and stores it consists of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.ops_handler import DefaultHandler
from torch._inductor.virtualized import V

from spyre_backend.compiler.errors import refuse
from spyre_backend.program import Origin

DEVICE_FUNCTIONS = (
    "layernormscale",
    "layernormnorm",
    "gelu",
    "silu",
    "softplus",
    "clip",
    "powi",
    "topkvalue",
    "topkindex",
)
"""Device functions that Inductor's own handlers do not know; :func:`declare_functions` makes them known."""

FROM_INDUCTOR = {
    "truediv": "realdiv",
    "relu": "relufwd",
    "where": "where3",
    "eq": "equal",
    "ne": "notequal",
    "gt": "greaterthan",
    "ge": "greaterequal",
    "lt": "lesserthan",
    "le": "lesserequal",
}
LOGIC = frozenset({"logical_and", "logical_or", "logical_not"})
COMPARISONS = LOGIC | {"equal", "notequal", "greaterthan", "greaterequal", "lesserthan", "lesserequal"}
BOOL_LOGIC = {
    "and_": "logical_and",
    "or_": "logical_or",
    "bitwise_and": "logical_and",
    "bitwise_or": "logical_or",
    "bitwise_not": "logical_not",
    "invert": "logical_not",
}
"""Bit operations of Inductor that are logic on bool, which the device does in fp16 (D5.2)."""
SAME_NAME = (
    frozenset({"add", "sub", "mul", "maximum", "minimum", "abs", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal"})
    | {"tanh", "sigmoid", "floor", "ceil", "sign", "square", "identity"}
    | LOGIC
    | frozenset(DEVICE_FUNCTIONS)
)


def declare_functions() -> None:
    """Teach Inductor's generic handlers the device functions (idempotent)."""
    for name in DEVICE_FUNCTIONS:
        if name not in DefaultHandler.__dict__:
            setattr(DefaultHandler, name, DefaultHandler._call_default(name))


@dataclass(frozen=True, slots=True)
class Load:
    """A read of ``buffer`` (a root storage) at ``index`` elements from its start."""

    buffer: str
    index: sympy.Expr
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Constant:
    """A compile-time scalar."""

    value: float | int | bool
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """The result of a device function."""

    name: str
    args: tuple[Any, ...]
    dtype: torch.dtype
    attrs: tuple[tuple[str, Any], ...] = ()


Value = Load | Constant | Call


@dataclass(slots=True)
class Body:
    """One loop body: what is stored, where, and how it is reduced (``reduction`` None for pointwise)."""

    value: Value
    buffer: str
    index: sympy.Expr
    dtype: torch.dtype
    loops: list[tuple[sympy.Symbol, int]]
    reduced: int
    reduction: str | None
    indirect: dict[sympy.Symbol, tuple[Load, int]] = field(default_factory=dict)


class _Tracer(DefaultHandler):
    """Records the calls of one loop body instead of generating code."""

    def __init__(self, origin: Origin) -> None:
        self.origin = origin
        self.indirect: dict[sympy.Symbol, tuple[Load, int]] = {}
        self.stored: tuple[str, sympy.Expr, Value] | None = None
        self.reduction_type: str | None = None

    def _refuse(self, name: str, args: tuple[Any, ...] = ()) -> Exception:
        dtypes = [a.dtype for a in args if isinstance(a, (Load, Constant, Call))]
        return refuse(
            "op-unsupported", op=name, detail=f"no device function for {name!r}", dtypes=dtypes, origin=self.origin
        )

    def load(self, name: str, index: sympy.Expr) -> Value:
        root, offset = root_access(name)
        return Load(root, sympy.sympify(index) + offset, V.graph.get_dtype(name))

    def constant(self, value: float | int | bool, dtype: torch.dtype) -> Value:
        return Constant(value, dtype)

    def index_expr(self, expr: sympy.Expr, dtype: torch.dtype) -> Value:
        known = V.graph.sizevars.simplify(sympy.sympify(expr))
        if known.is_Integer:
            return Constant(int(known), dtype)
        raise self._refuse("index_expr")

    def to_dtype(
        self, x: Value, dtype: torch.dtype, src_dtype: torch.dtype | None = None, use_compute_types: bool = True
    ) -> Value:
        if x.dtype == dtype:
            return x
        if isinstance(x, Constant):
            return Constant(float(x.value) if dtype.is_floating_point else x.value, dtype)
        return Call("to_dtype", (x,), dtype)

    def indirect_indexing(self, x: Value, size: Any, check: bool = True, wrap_neg: bool = True) -> sympy.Symbol:
        if not isinstance(x, Load):
            raise refuse(
                "indirect-access",
                op="indirect_indexing",
                detail="the index is computed, not stored",
                origin=self.origin,
            )
        symbol = sympy.Symbol(f"indirect{len(self.indirect)}", integer=True, nonnegative=True)
        self.indirect[symbol] = (x, static(size))
        return symbol

    def reduction(self, dtype: torch.dtype, src_dtype: torch.dtype, reduction_type: str, value: Value) -> Value:
        self.reduction_type = reduction_type
        return value

    def store(self, name: str, index: sympy.Expr, value: Value, mode: str | None = None) -> None:
        if mode is not None:
            raise refuse("index-duplicate", op=f"store mode {mode}", origin=self.origin)
        self.stored = (name, index, value)

    def store_reduction(self, name: str, index: sympy.Expr, value: Value) -> None:
        self.stored = (name, index, value)

    def masked(self, mask: Value, body: Any, other: Any) -> Value:
        raise self._refuse("masked")

    def _default(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Value:
        function = FROM_INDUCTOR.get(name) or (name if name in SAME_NAME else None)
        if function is None and all(getattr(a, "dtype", None) is torch.bool for a in args):
            function = BOOL_LOGIC.get(name)
        if function is None or not all(isinstance(a, (Load, Constant, Call)) for a in args):
            raise self._refuse(name, args)
        attrs = tuple(sorted(kwargs.items()))
        return Call(function, tuple(args), _result_dtype(function, args), attrs)


def _result_dtype(function: str, args: tuple[Any, ...]) -> torch.dtype:
    if function in COMPARISONS:
        return torch.bool
    values = args[1:] if function == "where3" else args
    tensors = [a.dtype for a in values if not isinstance(a, Constant)]
    dtypes = tensors or [a.dtype for a in values]
    result: torch.dtype = dtypes[0]
    for dtype in dtypes[1:]:
        result = torch.promote_types(result, dtype)
    if function == "realdiv" and not result.is_floating_point:
        return torch.float32
    return result


def static(extent: object) -> int:
    """A size, stride or offset as the number that it has in this compilation.

    Raises:
        CompileRefusal: it has none yet: it depends on data.
    """
    known = V.graph.sizevars.simplify(sympy.sympify(extent))
    if known.is_Integer:
        return int(known)
    raise refuse("dynamic-shape", op="dynamic shape", detail=f"size {extent} is not known when compiling")


def root_access(name: str) -> tuple[str, int]:
    """The buffer that owns the storage which ``name`` reads or writes, and where in it ``name`` begins.

    A piece of a cat is indexed from its own start; a mutated input is indexed through its own layout already.
    """
    buffer = V.graph.try_get_buffer(name)
    layout = getattr(buffer, "layout", None)
    if isinstance(layout, ir.NonOwningLayout):
        root, offset = root_access(layout.view.get_name())
        return root, offset + static(layout.view.get_layout().offset)
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return root_access(layout.get_buffer().get_name())
    return name, 0


def root_buffer(name: str) -> str:
    """The buffer of :func:`root_access` alone."""
    return root_access(name)[0]


def read_body(buffer: ir.ComputedBuffer, origin: Origin) -> Body:
    """Run the loop body of ``buffer`` under the tracer, over its full, unsimplified iteration space."""
    data = buffer.data
    if not isinstance(data, (ir.Pointwise, ir.Reduction)):
        raise refuse(
            "op-unsupported", op=type(data).__name__, detail=f"{type(data).__name__} has no device form", origin=origin
        )
    tracer = _Tracer(origin)
    loops = [
        (sympy.Symbol(f"d{i}", integer=True, nonnegative=True), static(n))
        for i, n in enumerate(data.get_pointwise_size())
    ]
    inner = [
        (sympy.Symbol(f"r{i}", integer=True, nonnegative=True), static(n))
        for i, n in enumerate(data.get_reduction_size())
    ]
    store = buffer.get_store_function()
    with V.set_ops_handler(tracer):
        if isinstance(data, ir.Reduction):
            store([s for s, _ in loops], [s for s, _ in inner])
        else:
            store([s for s, _ in loops])
    assert tracer.stored is not None
    _, index, value = tracer.stored
    root, offset = root_access(buffer.get_name())
    return Body(
        value=value,
        buffer=root,
        index=sympy.sympify(index) + offset,
        dtype=buffer.get_dtype(),
        loops=loops + inner,
        reduced=len(inner),
        reduction=tracer.reduction_type if inner or isinstance(data, ir.Reduction) else None,
        indirect=tracer.indirect,
    )
