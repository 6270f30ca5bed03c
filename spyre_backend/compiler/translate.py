"""From Inductor's scheduled loop bodies to device operations with affine accesses (the end of stage 3, lowering)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import sympy
import torch
from torch._inductor import ir
from torch._inductor.scheduler import BaseSchedulerNode
from torch._inductor.virtualized import V

from spyre_backend.compiler.affine import Affine, NeedSplit, NotAffine, affine
from spyre_backend.compiler.errors import refuse
from spyre_backend.compiler.graph import Buffer, Graph, contiguous_strides
from spyre_backend.compiler.origins import origin_of
from spyre_backend.compiler.trace import Body, Call, Constant, Load, Value, read_body, static
from spyre_backend.program import Const, Op, Operand, Origin

CASTS = {
    ("float16", "float32"): "dl16tofp32",
    ("bfloat16", "float32"): "dl16tofp32",
    ("float32", "float16"): "fp32todl16",
    ("float32", "bfloat16"): "fp32todl16",
    ("float16", "bfloat16"): "identity",
    ("bfloat16", "float16"): "identity",
    ("float16", "bool"): "identity",
    ("bfloat16", "bool"): "identity",
    ("float32", "bool"): "identity",
    ("float8_e4m3fn", "float16"): "fp8todl16",
}
"""Casts the device has, by (from, to) (D1.6); every other cast runs on the host."""


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float16`` -> "float16"."""
    return str(dtype).removeprefix("torch.")


def node_origin(buffer: ir.Operation) -> Origin:
    """Where the FX node behind an Inductor operation comes from."""
    node = getattr(buffer, "origin_node", None)
    if node is None:
        origins = sorted(getattr(buffer, "origins", ()), key=lambda n: n.name)
        node = origins[-1] if origins else None
    return Origin() if node is None else origin_of(node)


class Translator:
    """Translates scheduler nodes of one Inductor graph into a :class:`Graph`, one node at a time."""

    def __init__(self, name: str) -> None:
        self.graph = Graph(name=name)

    def buffer(self, name: str) -> Buffer:
        """The buffer ``name`` of Inductor's graph, made known to ours."""
        known = self.graph.buffers.get(name)
        if known is not None:
            return known
        size, stride, dtype, external = _buffer_facts(name)
        made = Buffer(name=name, dtype=dtype_name(dtype), size=size, stride=stride, external=external)
        self.graph.buffers[name] = made
        return made

    def translate(self, node: BaseSchedulerNode) -> list[Op]:
        """The device operations of one scheduler node, in order."""
        buffer = node.node
        assert isinstance(buffer, ir.ComputedBuffer)
        origin = node_origin(buffer)
        body = read_body(buffer, origin)
        fills = self._stored_constants(body, origin) if body.reduction is not None else []
        copies = self._plain_matmul_sides(body, origin) if body.reduction == "batchmatmul" else []
        return fills + copies + self._translate_body(body, origin)

    def _stored_constants(self, body: Body, origin: Origin) -> list[Op]:
        """Fill a tensor with each constant that Inductor put in place of a tensor that is reduced or multiplied: these
        operations read tensors only."""
        fills: list[Op] = []

        def stored(value: Value, loops: list[tuple[sympy.Symbol, int]]) -> Value:
            if not isinstance(value, Constant):
                return value
            tensor = self.graph.fresh(dtype_name(value.dtype), [n for _, n in loops], stem="constant")
            index = sum((s * step for (s, _), step in zip(loops, tensor.stride, strict=True)), sympy.Integer(0))
            fills.extend(
                self._translate_body(Body(value, tensor.name, index, value.dtype, list(loops), 0, None), origin)
            )
            return Load(tensor.name, index, value.dtype)

        if body.reduction == "batchmatmul" and isinstance(body.value, Call):
            rows, columns, width = body.loops[-3:]
            a, b = body.value.args
            sides = stored(a, [rows, width]), stored(b, [width, columns])
            body.value = Call(body.value.name, sides, body.value.dtype)
        else:
            body.value = stored(body.value, body.loops)
        return fills

    def _plain_matmul_sides(self, body: Body, origin: Origin) -> list[Op]:
        """Copy each side of a matmul whose index needs a split loop: its space has one dim each for M, N and K.

        A copy gives the default layout whatever it reads (D2.4), so its last dim is the one that the matmul wants along
        the stick: K of A, N of B.
        """
        assert isinstance(body.value, Call)
        copies: list[Op] = []
        sides = []
        stick = (body.loops[-1][0], body.loops[-2][0])
        for side, last in zip(body.value.args, stick, strict=True):
            try:
                affine(side.index, dict(body.loops))
                sides.append(side)
            except NeedSplit:
                loops = [(s, n) for s, n in body.loops if s in side.index.free_symbols]
                used = [loop for loop in loops if loop[0] != last] + [loop for loop in loops if loop[0] == last]
                copy = self.graph.fresh(dtype_name(side.dtype), [n for _, n in used], stem="copy")
                index = sum((s * step for (s, _), step in zip(used, copy.stride, strict=True)), sympy.Integer(0))
                whole = Body(side, copy.name, index, side.dtype, list(used), 0, None)
                copies += self._translate_body(whole, origin)
                sides.append(Load(copy.name, index, side.dtype))
        body.value = Call(body.value.name, tuple(sides), body.value.dtype)
        return copies

    def _translate_body(self, body: Body, origin: Origin) -> list[Op]:
        while True:
            try:
                return _BodyTranslator(self, body, origin).run()
            except NeedSplit as need:
                _split_loop(body, need)
            except NotAffine as error:
                raise refuse(
                    "view-stick-split",
                    op=origin.aten or "view",
                    detail=f"Could not find a host dimension matching stick expr {error}",
                    shapes=[[n for _, n in body.loops]],
                    dtypes=[body.dtype],
                    origin=origin,
                ) from None


def _buffer_facts(name: str) -> tuple[tuple[int, ...], tuple[int, ...], torch.dtype, bool]:
    graph = V.graph
    if name in graph.constants:
        tensor = graph.constants[name]
        return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, True
    buffer = graph.try_get_buffer(name)
    if buffer is None:
        buffer = graph.graph_inputs[name]
    layout = buffer.get_layout()
    size = tuple(static(n) for n in layout.size)
    stride = tuple(static(n) for n in layout.stride)
    external = name in graph.graph_inputs or not isinstance(buffer, (ir.ComputedBuffer, ir.ConcatKernel))
    return size, stride, layout.dtype, external


def _split_loop(body: Body, need: NeedSplit) -> None:
    position = next(i for i, (symbol, _) in enumerate(body.loops) if symbol == need.var)
    extent = body.loops[position][1]
    outer = sympy.Symbol(f"{need.var}o", integer=True, nonnegative=True)
    inner = sympy.Symbol(f"{need.var}i", integer=True, nonnegative=True)
    replacement = {need.var: outer * need.inner + inner}
    if position >= len(body.loops) - body.reduced:
        body.reduced += 1
    body.loops[position : position + 1] = [(outer, extent // need.inner), (inner, need.inner)]
    body.index = body.index.subs(replacement)
    body.value = _substituted(body.value, replacement)
    body.indirect = {s: (_load_substituted(x, replacement), n) for s, (x, n) in body.indirect.items()}


def _load_substituted(load: Load, replacement: dict[sympy.Symbol, sympy.Expr]) -> Load:
    return Load(load.buffer, load.index.subs(replacement), load.dtype)


def _substituted(value: Value, replacement: dict[sympy.Symbol, sympy.Expr]) -> Value:
    if isinstance(value, Load):
        return _load_substituted(value, replacement)
    if isinstance(value, Call):
        args = tuple(_substituted(a, replacement) for a in value.args)
        return Call(value.name, args, value.dtype, value.attrs)
    return value


class _BodyTranslator:
    """Turns one body into operations: every device function in it becomes one, with a temporary of its own."""

    def __init__(self, owner: Translator, body: Body, origin: Origin) -> None:
        self.owner = owner
        self.graph = owner.graph
        self.body = body
        self.origin = origin
        self.extents = dict(body.loops)
        self.dims = tuple(n for _, n in body.loops)
        self.ops: list[Op] = []
        self.known: dict[Value, Operand] = {}

    def run(self) -> list[Op]:
        body = self.body
        kept = len(self.dims) - body.reduced
        stored = [s for s in body.indirect if s in body.index.free_symbols]
        if stored:
            return self._scatter(stored)
        output = self._operand(body.buffer, affine(body.index, self.extents))
        if body.reduction == "batchmatmul":
            return self._matmul(output)
        if body.reduction is not None:
            operand = self._value(body.value, self.dims, force=False)
            if body.reduction in ("topkvalue", "topkindex"):
                return self._topk(operand, output)
            self._emit(body.reduction, (operand,), output, self.dims, reduced=body.reduced)
        else:
            assert kept == len(self.dims)
            self._store(body.value, output)
        return self.ops

    def _topk(self, operand: Operand | Const, output: Operand) -> list[Op]:
        """The space (*outer, k, n) becomes (*outer, n): k of the last dim's values are written along the output's k."""
        outer = len(self.dims) - 2
        assert isinstance(operand, Operand)
        source = replace(operand, strides=(*operand.strides[:outer], operand.strides[-1]))
        target = replace(output, strides=output.strides[:-1])
        dims = (*self.dims[:outer], self.dims[-1])
        assert self.body.reduction is not None
        self._emit(self.body.reduction, (source,), target, dims, reduced=1, attrs={"k": self.dims[outer]})
        return self.ops

    def _matmul(self, output: Operand) -> list[Op]:
        value = self.body.value
        assert isinstance(value, Call)
        assert value.name == "mul"
        sides = tuple(self._value(side, self.dims, force=False) for side in value.args)
        self._emit("batchmatmul", sides, output, self.dims, reduced=self.body.reduced)
        return self.ops

    def _store(self, value: Value, output: Operand) -> None:
        target = output.dtype
        if isinstance(value, Constant):
            self._emit("fill", (Const(value=value.value, dtype=target),), output, self.dims)
        elif isinstance(value, Load):
            self._copy(value, output)
        elif value.name == "to_dtype":
            self._cast(self._value(value.args[0], self.dims), output)
        elif dtype_name(value.dtype) != target:
            self._cast(self._value(value, self.dims), output)
        else:
            args = tuple(self._value(arg, self.dims) for arg in value.args)
            self._emit(value.name, args, output, self.dims, attrs=dict(value.attrs))

    def _copy(self, value: Load, output: Operand) -> None:
        if any(symbol in value.index.free_symbols for symbol in self.body.indirect):
            self._gather(value, output)
            return
        operand = self._load(value)
        if operand.dtype == output.dtype:
            self._emit("identity", (operand,), output, self.dims)
        else:
            self._cast(operand, output)

    def _gather(self, value: Load, output: Operand) -> None:
        symbols = [s for s in self.body.indirect if s in value.index.free_symbols]
        table, index, attrs = self._indexed("gather", symbols, value.buffer, value.index)
        self._emit("gather", (table, index), output, self.dims, attrs=attrs)

    def _scatter(self, symbols: list[sympy.Symbol]) -> list[Op]:
        """Values that are stored in the rows that an index names."""
        target, index, attrs = self._indexed("scatter", symbols, self.body.buffer, self.body.index)
        self._emit("scatter", (self._value(self.body.value, self.dims), index), target, self.dims, attrs=attrs)
        return self.ops

    def _indexed(
        self, name: str, symbols: list[sympy.Symbol], buffer: str, place: sympy.Expr
    ) -> tuple[Operand, Operand, dict[str, int]]:
        """The access of row 0, the index, and how far apart and how many the rows are."""
        if len(symbols) != 1:
            raise refuse("indirect-access", op=name, detail="more than one index in one access", origin=self.origin)
        index, extent = self.body.indirect[symbols[0]]
        form = affine(place, {**self.extents, symbols[0]: max(extent, 2)})
        stride = form.terms.pop(symbols[0], 0)
        return self._operand(buffer, form), self._load(index), {"index_stride": stride, "index_extent": extent}

    def _cast(self, operand: Operand | Const, output: Operand) -> None:
        source, target = operand.dtype, output.dtype
        name = CASTS.get((source, target))
        if source == target:
            name = "identity"
        if name is None:
            raise refuse(
                "dtype-cast",
                op="aten._to_copy.default",
                detail=f"no device cast from {source} to {target}",
                shapes=[self.dims],
                dtypes=[source, target],
                origin=self.origin,
            )
        self._emit(name, (operand,), output, self.dims)

    def _value(self, value: Value, dims: tuple[int, ...], *, force: bool = True) -> Operand | Const:
        if isinstance(value, Constant):
            return Const(value=value.value, dtype=dtype_name(value.dtype))
        if value in self.known:
            return self.known[value]
        if isinstance(value, Load) and not any(s in value.index.free_symbols for s in self.body.indirect):
            result = self._load(value)
        else:
            temporary = self.graph.fresh(dtype_name(value.dtype), dims)
            result = self._whole(temporary, dims)
            if isinstance(value, Load):
                self._gather(value, result)
            elif value.name == "to_dtype":
                self._cast(self._value(value.args[0], dims), result)
            else:
                args = tuple(self._value(arg, dims) for arg in value.args)
                self._emit(value.name, args, result, dims, attrs=dict(value.attrs))
        self.known[value] = result
        return result

    def _whole(self, buffer: Buffer, dims: tuple[int, ...]) -> Operand:
        strides = tuple(s if n > 1 else 0 for s, n in zip(contiguous_strides(dims), dims, strict=True))
        return Operand(tensor=buffer.name, strides=strides, offset=0, dtype=buffer.dtype)

    def _load(self, load: Load) -> Operand:
        return self._operand(load.buffer, affine(load.index, self.extents))

    def _operand(self, name: str, form: Affine) -> Operand:
        buffer = self.owner.buffer(name)
        strides = tuple(form.terms.get(symbol, 0) for symbol, _ in self.body.loops)
        return Operand(tensor=name, strides=strides, offset=form.offset, dtype=buffer.dtype)

    def _emit(
        self,
        name: str,
        inputs: Iterable[Operand | Const],
        output: Operand,
        dims: tuple[int, ...],
        *,
        reduced: int = 0,
        attrs: Mapping[str, Any] | None = None,
    ) -> None:
        op = Op(
            name=name,
            dims=dims,
            reduced=reduced,
            inputs=tuple(inputs),
            output=output,
            attrs=dict(attrs or {}),
            origin=self.origin,
        )
        self.ops.append(op)
