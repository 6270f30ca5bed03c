"""Sines and cosines of angles that are known beforehand, as rows of a table: the device has neither (D5.2)."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from hf_adapters.adapters._sticks import round_up
from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import POINTWISE, is_float, kind, operands, replace_with, shape, value

_TRIGONOMETRIC = ("sin", "cos")


def table_of_angles(candidate: Candidate, node: fx.Node) -> str | None:
    """`cos(position * frequency)` as a lookup by position.

    The table has a row for each position that the module says it knows. It holds each value as the sum of two, the
    second one being what rounding took from the first, so that nothing is lost where tensors are float32.
    """
    if kind(node) not in _TRIGONOMETRIC:
        return None
    found = _sources(node)
    if found is None:
        return None
    positions, constants, inside = found
    top = _downwards(node, inside, {positions, *constants})
    width, rows = shape(top)[-1], _rows(candidate, positions)
    if rows is None or shape(top) != (*shape(positions), width):
        return None
    graph = _table(positions, constants, [n for n in candidate.graph.nodes if n in inside], top, rows[1])
    if graph is None:
        return None
    sources = tuple(str(constant.target) for constant in constants)
    with candidate.graph.inserting_before(top):
        about = f"{kind(node)} of the angles of positions 0 to {rows[1] - 1}, and what rounding them to float32 leaves."
        table = tables.add(candidate, "angles", graph, sources, about)
        if table is None:
            return None
        # Buffers of modules without parameters stay on the host.
        device = candidate.graph.call_function(getattr, (positions, "device"))
        there = candidate.graph.call_method("to", (table,), {"device": device})
        looked = candidate.graph.call_function(F.embedding, (positions, there))
        # Columns that begin inside a stick cannot be given to another operation.
        starts = (0, round_up(width))
        columns: list[Any] = [(Ellipsis, slice(start or None, start + width)) for start in starts]
        first, rest = (candidate.graph.call_function(operator.getitem, (looked, each)) for each in columns)
        new = candidate.graph.call_function(operator.add, (first, rest))
    replace_with(candidate.graph, top, new)
    candidate.relies = tuple(dict.fromkeys((*candidate.relies, rows[0])))
    return "sine and cosine of the angle at a position -> row of a table"


def _sources(node: fx.Node) -> tuple[fx.Node, list[fx.Node], set[fx.Node]] | None:
    """(integer positions, constants of the module, nodes between) when the angles depend on nothing else."""
    inside: set[fx.Node] = set()
    positions: set[fx.Node] = set()
    constants: dict[fx.Node, None] = {}
    pending = [node]
    while pending:
        current = pending.pop()
        if current in inside or _is_trait(current):
            continue
        if current.op == "get_attr" and is_float(current):
            constants[current] = None
        elif current.op == "placeholder":
            held = value(current)
            if not isinstance(held, Tensor) or held.is_floating_point():
                return None
            positions.add(current)
        elif current.op in ("call_function", "call_method"):
            inside.add(current)
            pending += current.all_input_nodes
        else:
            return None
    return (positions.pop(), list(constants), inside) if len(positions) == 1 and constants else None


def _is_trait(node: fx.Node) -> bool:
    """The dtype or the device of a tensor, which a table does not depend on."""
    return node.op == "call_function" and node.target is getattr and node.args[1] in ("dtype", "device")


def _downwards(node: fx.Node, inside: set[fx.Node], outside: set[fx.Node]) -> fx.Node:
    """The last of the operations by element behind a node that take nothing else in; they become part of `inside`."""
    while len(node.users) == 1:
        (user,) = node.users
        if kind(user) not in POINTWISE or not set(operands(user)) <= inside | outside:
            break
        inside.add(user)
        node = user
    return node


def _rows(candidate: Candidate, positions: fx.Node) -> tuple[str, int] | None:
    """(attribute, its value): the number of positions that the module knows."""
    seen = max(int(positions.meta[key].max()) for key in ("value", "other")) + 1
    plain = candidate.traced.attributes
    named = {n: v for n, v in plain.items() if type(v) is int and v >= seen and "max" in n}
    return min(named.items(), key=lambda item: item[1]) if named else None


def _table(
    positions: fx.Node, constants: list[fx.Node], inside: list[fx.Node], top: fx.Node, rows: int
) -> fx.Graph | None:
    """The same operations for all positions, in float64: values rounded to float32, then what that leaves."""
    graph = fx.Graph()
    places: dict[fx.Node, Any] = {}
    for constant in constants:
        held = graph.placeholder(str(constant.target).replace(".", "_"))
        places[constant] = graph.call_method("double", (held,))
    lead = (1,) * (len(shape(positions)) - 1)
    counted = graph.call_method("double", (graph.call_function(torch.arange, (rows,)),))
    places[positions] = graph.call_method("reshape", (counted, *lead, rows))
    for node in inside:
        if kind(node) == "to":
            places[node] = places.get(node.all_input_nodes[0])
            continue
        try:
            places[node] = graph.node_copy(node, lambda n: places[n])
        except KeyError:
            return None
    exact = graph.call_method("reshape", (places[top], rows, shape(top)[-1]))
    rounded: Any = graph.call_method("double", (graph.call_method("float", (exact,)),))
    rest: Any = graph.call_function(operator.sub, (exact, rounded))
    width = shape(top)[-1]
    if extra := round_up(width) - width:
        rounded, rest = (graph.call_function(F.pad, (part, (0, extra))) for part in (rounded, rest))
    graph.output(graph.call_function(torch.cat, ((rounded, rest), -1)))
    return graph


RULES = (table_of_angles,)
