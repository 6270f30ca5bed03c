"""Stage 5, restickify placement: every operand gets the stick that its operation needs (D2.4, D2.6).

:mod:`restickify_search` chooses how every operation runs; here the graph is rewritten accordingly: layouts are set,
``ReStickifyOpHBM`` operations are inserted, and each of them leaves a line that says why (``explain`` shows it).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from spyre_backend.compiler import padding
from spyre_backend.compiler.graph import Graph, operands
from spyre_backend.compiler.layouts import layout_of
from spyre_backend.compiler.restickify_choices import Choices
from spyre_backend.compiler.restickify_options import Move, Option, Placed
from spyre_backend.compiler.restickify_search import Plan, search
from spyre_backend.program import Const, Op, Operand

REASONS = {
    "slice": "a slice begins inside a stick, so its tensor gets another stick dim (D6.11)",
    "operands": "all operands and the result share one stick dim (D2.4)",
    "matmul-a": "matmul A runs along K (D2.4)",
    "matmul-b": "matmul B runs along N (D2.4)",
    "reduction": "this reduction runs along the stick (D2.4)",
    "pool": "pooling has channels along the stick (D2.4, D5.3)",
    "result": "the tensor that is written has a layout of its own",
}


@dataclass(slots=True)
class _Emission:
    """The graph under way: finished operations, results of moves that may be used again, lines for ``explain``."""

    graph: Graph
    choices: Choices
    ops: list[Op] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    results: dict[Move, str] = field(default_factory=dict)


def place(graph: Graph, exported: frozenset[str]) -> list[str]:
    """Assign layouts to every buffer of ``graph`` and insert the moves; returns a summary and a line for each move.

    ``exported`` are buffers that leave the graph: they take the default layout unless a reduction made them sparse.

    Raises:
        SpyreUnsupported: an access or an operand combination has no legal form.
    """
    choices = Choices(graph, exported)
    plan = search(choices)
    state = _Emission(graph, choices)
    for name, stick in choices.pinned.items():
        graph.buffers[name].layout = layout_of(graph.buffers[name], stick)
    for index, (op, option) in enumerate(zip(graph.ops, plan.options, strict=True)):
        _emit(state, index, op, option)
    graph.ops = state.ops
    padding.track(graph)
    return [_summary(plan), *state.notes] if state.notes else []


def _summary(plan: Plan) -> str:
    text = f"{_moves(plan.cost[1])}, {plan.cost[0] / 1e6:.3f} us (D7.3)"
    if plan.by_rule is None:
        text += "; operation by operation no placement is legal"
    elif plan.by_rule[:2] != plan.cost[:2]:
        text += f"; operation by operation: {_moves(plan.by_rule[1])}, {plan.by_rule[0] / 1e6:.3f} us"
    return text + f"; {'optimum' if plan.exact else 'best found'} of {plan.states} states"


def _moves(count: int) -> str:
    return f"{count} move" if count == 1 else f"{count} moves"


def _emit(state: _Emission, index: int, op: Op, option: Option) -> None:
    graph = state.graph
    placed = iter(option.inputs)
    inputs: list[Operand | Const] = []
    for item in op.inputs:
        inputs.append(_read(state, index, op, option, next(placed)) if isinstance(item, Operand) else item)
    buffer = graph.buffers[op.output.tensor]
    if buffer.layout is None:
        buffer.layout = layout_of(buffer, option.layout)
    state.results = {move: name for move, name in state.results.items() if move.tensor != buffer.name}
    if not option.through:
        state.ops.append(replace(op, inputs=tuple(inputs), output=replace(op.output, stick=option.written)))
        return
    kept = len(op.dims) - op.reduced
    temporary = graph.fresh(op.output.dtype, op.dims[:kept])
    temporary.layout = layout_of(temporary, option.stick)
    whole = Operand(tensor=temporary.name, strides=temporary.stride, offset=0, dtype=op.output.dtype)
    padded = replace(whole, strides=(*whole.strides, *[0] * op.reduced), stick=option.stick)
    state.ops.append(replace(op, inputs=tuple(inputs), output=padded))
    final = replace(op.output, strides=op.output.strides[:kept], stick=option.written)
    whole = replace(whole, stick=option.stick)
    state.ops.append(_restickify(op, op.dims[:kept], whole, final))
    places = f"stick {_dim(option.stick)} to {_dim(option.written)}"
    state.notes.append(f"{temporary.name} -> {buffer.name}: {places} after {op.name}; {REASONS['result']}")
    if option.gives is not None:
        state.results[option.gives] = temporary.name


def _read(state: _Emission, index: int, op: Op, option: Option, placed: Placed) -> Operand:
    """The operand with its moves done, each of them at most once."""
    for move in placed.moves:
        if move not in state.results:
            state.results[move] = _insert(state, op, move)
            state.notes.append(_note(state, index, op, option, placed, move))
    return replace(placed.operand, tensor=state.results[placed.moves[-1]]) if placed.moves else placed.operand


def _insert(state: _Emission, op: Op, move: Move) -> str:
    buffer = state.graph.fresh(move.source.dtype, move.size, stem="restick")
    buffer.layout = layout_of(buffer, move.stick)
    tensor = move.tensor if move.base is None else state.results[move.base]
    source = replace(move.source, tensor=tensor, stick=move.from_stick)
    target = Operand(tensor=buffer.name, strides=buffer.stride, offset=0, dtype=source.dtype, stick=move.stick)
    state.ops.append(_restickify(op, move.size, source, target))
    return buffer.name


def _restickify(op: Op, dims: tuple[int, ...], source: Operand, target: Operand) -> Op:
    return Op(name="ReStickifyOpHBM", dims=dims, reduced=0, inputs=(source,), output=target, origin=op.origin)


def _note(state: _Emission, index: int, op: Op, option: Option, placed: Placed, move: Move) -> str:
    """What moved, for which operation, what it costs, why, and what the other ways would have cost."""
    where = " at ".join(part for part in (op.origin.aten, op.origin.module_path) if part)
    places = f"stick {_dim(move.from_stick)} to {_dim(move.stick)}"
    text = (
        f"{move.tensor} {list(move.size)} -> {state.results[move]}: {places}, "
        f"{move.cost / 1e6:.3f} us, for {op.name}{f' ({where})' if where else ''}; {REASONS[placed.reason]}"
    )
    sticks = {o.tensor: _stick(state, o.tensor) for o in operands(op)}
    costs: dict[int | None, int] = {}
    for other in state.choices.options(index, sticks):
        cost = sum(m.cost for m in set(other.moves)) + other.extra
        costs[other.stick] = min(cost, costs.get(other.stick, cost))
    others = [f"{_dim(stick)} {cost / 1e6:.3f} us" for stick, cost in costs.items() if stick != option.stick]
    return text + (f"; along {_dim(option.stick)} here, alone it would cost: {', '.join(others)}" if others else "")


def _stick(state: _Emission, name: str) -> int | None:
    layout = state.graph.buffers[name].layout
    return None if layout is None else layout.stick_dim


def _dim(stick: int | None) -> str:
    return "none" if stick is None else f"d{stick}"
