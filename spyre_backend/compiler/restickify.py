"""Stage 5, restickify placement: every operand gets the stick that its operation needs (D2.4, D2.6).

Operations are visited in order.  Each chooses the stick variable that moves the fewest elements (the practical rule of
D2.6: all but the majority by bytes move), operands that disagree are moved by ``ReStickifyOpHBM``, and what no move can
mend is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from spyre_backend.compiler.errors import CompileRefusal, refuse
from spyre_backend.compiler.graph import Buffer, Graph, contiguous_strides, operands
from spyre_backend.compiler.layouts import IllegalAccess, default_stick_dim, layout_of, stick_variable
from spyre_backend.program import Const, Op, Operand

ANY_INPUT = frozenset({"identity"})
"""Copies take any input and give the default layout (D2.4: clone, contiguous)."""
STICK_REDUCTIONS = frozenset({"exx2_mean", "exx2_meansq", "topkvalue", "topkindex"})
"""Reductions that want the reduced dim along the stick (D2.4)."""


@dataclass(slots=True)
class Placement:
    """The graph under way: finished operations, the reason of each move (for ``explain``)."""

    graph: Graph
    exported: frozenset[str]
    ops: list[Op]
    notes: list[str]
    moved: dict[tuple[object, ...], Operand]


def place(graph: Graph, exported: frozenset[str]) -> list[str]:
    """Assign layouts to every buffer of ``graph`` and insert the moves; returns one line for each move.

    ``exported`` are buffers that leave the graph: they take the default layout unless a reduction made them sparse.

    Raises:
        SpyreUnsupported: an access or an operand combination has no legal form.
    """
    state = Placement(graph=graph, exported=exported, ops=[], notes=[], moved={})
    in_pieces = _partly_written(graph)
    for buffer in graph.buffers.values():
        if buffer.external or buffer.name in in_pieces:
            buffer.layout = layout_of(buffer, default_stick_dim(buffer))
    for op in graph.ops:
        _place_op(state, op)
    graph.ops = state.ops
    return state.notes


def _partly_written(graph: Graph) -> frozenset[str]:
    """Buffers that several operations write (cat): they begin as an empty tensor of the default layout."""
    writers: dict[str, int] = {}
    for op in graph.ops:
        writers[op.output.tensor] = writers.get(op.output.tensor, 0) + 1
    return frozenset(name for name, count in writers.items() if count > 1)


def _place_op(state: Placement, op: Op) -> None:
    if op.name == "batchmatmul":
        _place_matmul(state, op)
    elif op.name == "gather":
        _place_gather(state, op)
    elif op.reduced:
        _place_reduction(state, op)
    elif op.name in ANY_INPUT and any(True for _ in operands(op)):
        _place_copy(state, op)
    else:
        _place_pointwise(state, op)


def _error(op: Op, rule: str, detail: str) -> CompileRefusal:
    tensors = [*operands(op)]
    return refuse(
        rule,
        op=op.name,
        detail=detail,
        shapes=[[n for n, s in zip(op.dims, t.strides, strict=True) if s] for t in tensors],
        dtypes=[t.dtype for t in tensors],
        origin=op.origin,
    )


def _access(state: Placement, op: Op, operand: Operand) -> tuple[Operand, int | None]:
    """The operand with its stick variable; a slice that begins inside a stick moves its base first (D6.11)."""
    buffer = state.graph.buffers[operand.tensor]
    try:
        return operand, stick_variable(operand, op.dims, buffer)
    except IllegalAccess as error:
        if error.rule == "slice-stick-offset":
            other = _aligned_alternative(state, op, operand, buffer)
            if other is not None:
                return other
        raise _error(op, error.rule, _text(error)) from None


def _text(error: IllegalAccess) -> str:
    if error.rule == "view-stick-split":
        return f"Could not find a host dimension matching stick expr {error.expression}"
    return (
        f"Unexpected stick expression {error.expression}: expected Mod(var, 64), a bare variable, 0, or any of those "
        "with a constant offset"
    )


def _aligned_alternative(
    state: Placement, op: Op, operand: Operand, buffer: Buffer
) -> tuple[Operand, int | None] | None:
    """Move the base of a misaligned slice so that another dim of whole sticks runs along the stick."""
    if buffer.stride != contiguous_strides(buffer.size):
        return None
    assert buffer.layout is not None
    for dim in reversed(range(len(buffer.size))):
        if dim == buffer.layout.stick_dim or buffer.size[dim] % buffer.eps:
            continue
        moved = Buffer(
            name="probe",
            dtype=buffer.dtype,
            size=buffer.size,
            stride=buffer.stride,
            external=False,
            layout=layout_of(buffer, dim),
        )
        try:
            variable = stick_variable(operand, op.dims, moved)
        except IllegalAccess:
            continue
        whole = Operand(tensor=buffer.name, strides=buffer.stride, offset=0, dtype=buffer.dtype)
        target = _move(state, op, whole, buffer.size, dim, "a slice begins inside a stick")
        return replace(operand, tensor=target.tensor), variable
    return None


def _move(state: Placement, op: Op, operand: Operand, dims: Sequence[int], stick: int, why: str) -> Operand:
    """Insert a restickify of the view ``operand`` over ``dims`` so that dim ``stick`` runs along the stick."""
    kept = [i for i, (s, n) in enumerate(zip(operand.strides, dims, strict=True)) if s and n > 1]
    key = (operand.tensor, operand.offset, tuple((operand.strides[i], dims[i]) for i in kept), operand.strides[stick])
    known = state.moved.get(key)
    size = tuple(dims[i] for i in kept)
    if known is None:
        buffer = state.graph.fresh(operand.dtype, size, stem="restick")
        buffer.layout = layout_of(buffer, kept.index(stick))
        source = replace(operand, strides=tuple(operand.strides[i] for i in kept))
        where = state.graph.buffers[operand.tensor]
        try:
            source = replace(source, stick=stick_variable(source, size, where))
        except IllegalAccess as error:
            raise _error(op, error.rule, _text(error)) from None
        target = Operand(
            tensor=buffer.name, strides=buffer.stride, offset=0, dtype=operand.dtype, stick=kept.index(stick)
        )
        move = Op(name="ReStickifyOpHBM", dims=size, reduced=0, inputs=(source,), output=target, origin=op.origin)
        state.ops.append(move)
        state.notes.append(
            f"{operand.tensor} {list(size)} -> {buffer.name}: stick "
            f"{'none' if source.stick is None else f'd{source.stick}'} to d{kept.index(stick)} for {op.name}; {why}"
        )
        known = target
        state.moved[key] = known
    strides = [0] * len(dims)
    for position, i in enumerate(kept):
        strides[i] = contiguous_strides(size)[position]
    return Operand(tensor=known.tensor, strides=tuple(strides), offset=0, dtype=operand.dtype, stick=stick)


def _with_stick(state: Placement, op: Op, operand: Operand, stick: int | None, why: str) -> Operand:
    """``operand`` with iteration dim ``stick`` along its stick (constant along it is as good), moved if need be."""
    operand, current = _access(state, op, operand)
    if current == stick:
        return replace(operand, stick=current)
    depends = stick is not None and operand.strides[stick] != 0 and op.dims[stick] > 1
    if current is None and not depends:
        return replace(operand, stick=None)
    if not depends or stick is None:
        raise _error(
            op,
            "double-broadcast",
            f"no stick scatter: {operand.tensor} runs along d{current}, the result along d{stick}",
        )
    return _move(state, op, operand, op.dims, stick, why)


def _finish(state: Placement, op: Op, inputs: Sequence[Operand | Const], stick: int | None) -> None:
    """Emit ``op`` with its output along ``stick``; an output of another fixed layout is written through a temporary."""
    graph = state.graph
    buffer = graph.buffers[op.output.tensor]
    if buffer.layout is None:
        wanted = _host_dim(op, buffer, stick)
        if buffer.name in state.exported and not op.reduced and buffer.size and op.name != "batchmatmul":
            wanted = default_stick_dim(buffer)
        buffer.layout = layout_of(buffer, wanted)
    try:
        actual = stick_variable(op.output, _output_dims(op), buffer, store=True)
    except IllegalAccess as error:
        raise _error(op, error.rule, _text(error)) from None
    if actual == stick or op.name in ANY_INPUT or actual is None:
        state.ops.append(replace(op, inputs=tuple(inputs), output=replace(op.output, stick=actual)))
        return
    kept = len(op.dims) - op.reduced
    temporary = graph.fresh(op.output.dtype, op.dims[:kept])
    temporary.layout = layout_of(temporary, stick)
    whole = Operand(tensor=temporary.name, strides=temporary.stride, offset=0, dtype=op.output.dtype, stick=stick)
    padded = replace(whole, strides=(*whole.strides, *[0] * op.reduced))
    state.ops.append(replace(op, inputs=tuple(inputs), output=padded))
    final = replace(op.output, strides=op.output.strides[:kept], stick=actual)
    state.ops.append(
        Op(name="ReStickifyOpHBM", dims=op.dims[:kept], reduced=0, inputs=(whole,), output=final, origin=op.origin)
    )
    state.notes.append(f"{op.output.tensor}: {op.name} gives stick d{stick}, the tensor has d{actual}")


def _output_dims(op: Op) -> tuple[int, ...]:
    """The iteration space as the output sees it: topk writes ``k`` of the last dim."""
    return (*op.dims[:-1], int(op.attrs["k"])) if "k" in op.attrs else op.dims


def _host_dim(op: Op, buffer: Buffer, stick: int | None) -> int | None:
    """The host dim of a fresh output that iteration dim ``stick`` runs along with step 1."""
    if stick is None:
        return None
    stride = op.output.strides[stick]
    return next((d for d, s in enumerate(buffer.stride) if s == stride and buffer.size[d] > 1), None)


def _candidates(state: Placement, op: Op, accesses: Sequence[tuple[Operand, int | None]]) -> list[int | None]:
    buffer = state.graph.buffers[op.output.tensor]
    if buffer.layout is not None:
        return [stick_variable(op.output, op.dims, buffer, store=True)]
    kept = range(len(op.dims) - op.reduced)
    last = next((i for i in reversed(kept) if op.dims[i] > 1 and op.output.strides[i]), None)
    found: list[int | None] = []
    for candidate in [*(v for _, v in accesses), last]:
        usable = candidate is None or (op.output.strides[candidate] and _host_dim(op, buffer, candidate) is not None)
        if usable and candidate not in found:
            found.append(candidate)
    return found


def _cost(op: Op, accesses: Sequence[tuple[Operand, int | None]], stick: int | None) -> float:
    """Elements moved if the operation runs along ``stick``; infinite if some operand has no legal form (D2.6)."""
    total = 0.0
    for operand, current in accesses:
        depends = stick is not None and operand.strides[stick] != 0 and op.dims[stick] > 1
        if current == stick or (current is None and not depends):
            continue
        if not depends:
            return math.inf
        total += math.prod(n for n, s in zip(op.dims, operand.strides, strict=True) if s)
    return total


def _place_pointwise(state: Placement, op: Op) -> None:
    accesses = [_access(state, op, o) for o in operands(op)]
    try:
        candidates = _candidates(state, op, accesses)
    except IllegalAccess as error:
        raise _error(op, error.rule, _text(error)) from None
    last = len(op.dims)
    ranked = sorted(candidates, key=lambda c: (_cost(op, accesses, c), -(last if c is None else c)))
    best = ranked[0]
    if _cost(op, accesses, best) == math.inf:
        sticks = [f"{o.tensor} along {'nothing' if v is None else f'd{v}'}" for o, v in accesses]
        raise _error(
            op,
            "double-broadcast",
            f"no stick scatter, no mechanism to resolve stick incompatibility: {'; '.join(sticks)}",
        )
    _finish(state, op, _matched(state, op, lambda o: _with_stick(state, op, o, best, "operands disagree")), best)


def _matched(state: Placement, op: Op, place_one: Callable[[Operand], Operand]) -> list[Operand | Const]:
    return [place_one(item) if isinstance(item, Operand) else item for item in op.inputs]


def _place_copy(state: Placement, op: Op) -> None:
    (operand,) = operands(op)
    operand, current = _access(state, op, operand)
    buffer = state.graph.buffers[op.output.tensor]
    if buffer.layout is None:
        buffer.layout = layout_of(buffer, len(buffer.size) - 1 if buffer.size and buffer.size[-1] > 1 else None)
    _finish(state, op, [replace(operand, stick=current)], current)


def _place_reduction(state: Placement, op: Op) -> None:
    kept = len(op.dims) - op.reduced
    inputs: list[Operand | Const] = []
    stick: int | None = None
    for item in op.inputs:
        if isinstance(item, Const):
            inputs.append(item)
            continue
        operand, stick = _access(state, op, item)
        if op.name in STICK_REDUCTIONS and stick != kept:
            operand = _with_stick(state, op, operand, kept, f"{op.name} reduces along the stick")
            stick = kept
        inputs.append(replace(operand, stick=stick))
    if op.name == "prod" and stick is not None and stick >= kept:
        raise _error(op, "reduction-stick", "prod cannot reduce along the stick")
    result = None if stick is None or stick >= kept else stick
    if op.name.startswith("topk"):
        result = kept
    _finish(state, op, inputs, result)


def _place_matmul(state: Placement, op: Op) -> None:
    rows, columns, width = len(op.dims) - 3, len(op.dims) - 2, len(op.dims) - 1
    a, b = operands(op)
    eps = state.graph.buffers[a.tensor].eps
    if op.dims[width] % eps:
        raise _error(op, "matmul-k-stick", f"Could not find any suitable dimension mapping: K={op.dims[width]}")
    if op.dims[columns] < 2:
        raise _error(
            op, "matmul-out-one", f"cannot restickify any input layout of {b.tensor} to carry x_var=d{columns}"
        )
    del rows
    left = _with_stick(state, op, a, width, "matmul A runs along K")
    right = _with_stick(state, op, b, columns, "matmul B runs along N")
    _finish(state, op, [left, right], columns)


def _place_gather(state: Placement, op: Op) -> None:
    table, index = operands(op)
    buffer = state.graph.buffers[table.tensor]
    stride = int(op.attrs["index_stride"])
    outermost = buffer.stride and stride == max(s for s, n in zip(buffer.stride, buffer.size, strict=True) if n >= 1)
    if not outermost:
        raise _error(op, "indirect-access", "the indexed dim is not at device position 0")
    table, current = _access(state, op, table)
    index, along = _access(state, op, index)
    _finish(state, op, [replace(table, stick=current), replace(index, stick=along)], current)
