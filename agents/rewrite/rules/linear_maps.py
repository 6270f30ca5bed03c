"""Slices, rolls, flips, negations and concatenations inside the last dimension as one matmul by a constant matrix.

Whatever only moves, negates and scales the elements of each row is a linear map of rows, so its matrix is what it makes
of the identity.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import kind, number, operands, replace_with, shape, value

_MOVES = frozenset({
    "getitem", "neg", "cat", "stack", "flatten", "chunk", "split", "unbind", "narrow", "select", "flip", "roll",
    "reshape", "unflatten", "repeat_interleave", "index_select", "tile", "pad",
})  # fmt: skip
_SAME = 1e-12


def last_dimension_map(candidate: Candidate, node: fx.Node) -> str | None:
    """The moves above a node, up to the one tensor that they start from, as `x @ matrix`."""
    if kind(node) not in _MOVES or not isinstance(value(node), Tensor):
        return None
    source = tables.anchor(candidate)
    for start in _starts(node):
        inside = _between(start, node)
        graph = _of_identity(candidate, start, node, inside)
        if graph is None or source is None or len(inside) < 2:
            continue
        with candidate.graph.inserting_before(node):
            matrix = tables.add(candidate, "moves", graph, (source,), "What the stock form makes of the identity.")
            if matrix is None or not _is_map(start, node, value(matrix)):
                continue
            new = candidate.graph.call_function(torch.matmul, (start, matrix))
        replace_with(candidate.graph, node, new)
        return "moves inside the last dimension -> x @ matrix of 0, 1 and -1"
    return None


def map_between(candidate: Candidate, start: fx.Node, node: fx.Node) -> fx.Graph | None:
    """The graph of the matrix that the moves from one node to another multiply rows by; None when they are none."""
    inside = _between(start, node)
    if not inside or any(kind(n) not in _MOVES and isinstance(value(n), Tensor) for n in inside):
        return None
    graph = _of_identity(candidate, start, node, inside)
    if graph is None:
        return None
    held = candidate.traced.module.get_parameter(tables.anchor(candidate) or "").detach().double()
    try:
        matrix = fx.Interpreter(fx.GraphModule(torch.nn.Module(), graph)).run(held)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return None
    return graph if isinstance(matrix, Tensor) and _is_map(start, node, matrix) else None


def _starts(node: fx.Node) -> list[fx.Node]:
    """Nodes that every way up from `node` through moves passes, nearest first."""
    found: list[fx.Node] = []
    frontier = list(operands(node))
    while frontier:
        if len(set(frontier)) == 1:
            found.append(frontier[0])
        latest = max(set(frontier), key=_position)
        if kind(latest) not in _MOVES:
            break
        frontier = [n for n in frontier if n is not latest]
        frontier += [n for n in latest.all_input_nodes if isinstance(value(n), (Tensor, tuple, list))]
    return found


def _position(node: fx.Node) -> int:
    return list(node.graph.nodes).index(node)


def _between(start: fx.Node, node: fx.Node) -> list[fx.Node]:
    inside: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current is start or current in inside:
            continue
        inside.add(current)
        pending.extend(current.all_input_nodes)
    return [n for n in node.graph.nodes if n in inside]


def _of_identity(candidate: Candidate, start: fx.Node, node: fx.Node, inside: list[fx.Node]) -> fx.Graph | None:
    """The same moves, of an identity matrix as wide as the rows; numbers that the module holds stand in it."""
    if not shape(start):
        return None
    graph = fx.Graph()
    places: dict[fx.Node, Any] = {}
    like = graph.placeholder("like")
    kwargs: dict[str, Argument] = {"dtype": graph.call_function(getattr, (like, "dtype"))}
    places[start] = graph.call_function(torch.eye, (shape(start)[-1],), kwargs)
    for each in inside:
        if each.op == "get_attr" and number(each) is not None:
            places[each] = number(each)
            candidate.relies = tuple(dict.fromkeys((*candidate.relies, str(each.target))))
            continue
        try:
            places[each] = graph.node_copy(each, lambda n: places[n])
        except KeyError:
            return None
    graph.output(places[node])
    return graph


def _is_map(start: fx.Node, node: fx.Node, matrix: Tensor) -> bool:
    before, after = value(start), value(node)
    if matrix.dim() != 2 or matrix.shape[0] != before.shape[-1] or before.dtype != after.dtype or not after.numel():
        return False
    made = before.double() @ matrix
    if made.shape != after.shape:
        return False
    return bool((made - after).abs().amax() <= _SAME * after.abs().amax().clamp(min=1e-300))


RULES = (last_dimension_map,)
