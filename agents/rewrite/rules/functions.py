"""Activations under other names: a region of pointwise operations that computes a function which the device has.

The region is compared with each known function on a grid in float64, tails included, so what counts is what it
computes and not how it is written.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import POINTWISE, cone, kind, replace_with, shape

_SAME = 1e-9
Builder = Callable[[fx.Graph, fx.Node], fx.Node]


def _gelu(graph: fx.Graph, x: fx.Node) -> fx.Node:
    return graph.call_function(F.gelu, (x,))


def _silu(graph: fx.Graph, x: fx.Node) -> fx.Node:
    return graph.call_function(F.silu, (x,))


def _squared_relu(graph: fx.Graph, x: fx.Node) -> fx.Node:
    positive = graph.call_function(torch.relu, (x,))
    return graph.call_function(operator.mul, (positive, positive))


def _mish(graph: fx.Graph, x: fx.Node) -> fx.Node:
    """x * n / (n + 2) with n = e^x (e^x + 2); from 20 on it is x to the last bit of float64, and e^x may overflow."""
    bounded = graph.call_function(torch.clamp_max, (x, 20.0))
    exp = graph.call_function(torch.exp, (bounded,))
    n = graph.call_function(operator.mul, (exp, graph.call_function(operator.add, (exp, 2.0))))
    quotient = graph.call_function(operator.truediv, (n, graph.call_function(operator.add, (n, 2.0))))
    return graph.call_function(operator.mul, (x, quotient))


_KNOWN: tuple[tuple[str, Callable[[Tensor], Tensor], Builder], ...] = (
    ("gelu(x)", F.gelu, _gelu),
    ("silu(x)", F.silu, _silu),
    ("relu(x) * relu(x)", lambda x: torch.relu(x) ** 2, _squared_relu),
    ("x * n / (n + 2) with n = e^x (e^x + 2)", F.mish, _mish),
)


def known_function(candidate: Candidate, node: fx.Node) -> str | None:
    """The pointwise region above a node as one of the known functions of its only input."""
    if kind(node) not in POINTWISE:
        return None
    inside, sources = cone(node, POINTWISE)
    if len(sources) != 1:
        return None
    source = next(iter(sources))
    if shape(source) != shape(node):
        return None
    grid = torch.cat([torch.linspace(-60.0, 60.0, 1201), torch.linspace(-1e-3, 1e-3, 41)]).double()
    found = _run(candidate, node, source, inside, grid)
    for name, function, builder in _KNOWN:
        if found is not None and _agree(found, function(grid)):
            if len(inside) == 1 and kind(node) in name:
                return None
            with candidate.graph.inserting_before(node):
                new = builder(candidate.graph, source)
            replace_with(candidate.graph, node, new)
            return f"{len(inside)} pointwise operations -> {name}"
    return None


def _agree(a: Tensor, b: Tensor) -> bool:
    return bool(((a - b).abs() <= _SAME * b.abs().clamp(min=1e-6)).all())


def _run(candidate: Candidate, node: fx.Node, source: fx.Node, inside: set[fx.Node], grid: Tensor) -> Tensor | None:
    graph = fx.Graph()
    places: dict[fx.Node, fx.Node] = {}
    places[source] = graph.placeholder("x")
    for each in candidate.graph.nodes:
        needed = each in inside or (each.op == "get_attr" and any(u in inside for u in each.users))
        if needed and each is not source:
            places[each] = graph.node_copy(each, lambda n: places[n])
    graph.output(places[node])
    try:
        made = fx.Interpreter(fx.GraphModule(candidate.root(torch.float64), graph)).run(grid)
    except (RuntimeError, TypeError, KeyError, ValueError):
        return None
    return made if isinstance(made, Tensor) and made.shape == grid.shape else None


def tanh_by_sigmoid(candidate: Candidate, node: fx.Node) -> str | None:
    """tanh(u) as 2 sigmoid(2 u) - 1, which the device has in float32 as well (D1.6)."""
    if kind(node) != "tanh":
        return None
    graph = candidate.graph
    with graph.inserting_before(node):
        twice = graph.call_function(operator.mul, (node.args[0], 2.0))
        new = graph.call_function(operator.mul, (graph.call_function(torch.sigmoid, (twice,)), 2.0))
        new = graph.call_function(operator.sub, (new, 1.0))
    replace_with(graph, node, new)
    return "tanh(u) -> 2 sigmoid(2 u) - 1"


RULES = (known_function, tanh_by_sigmoid)
