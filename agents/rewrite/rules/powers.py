"""Powers, reciprocals and roots."""

from __future__ import annotations

import operator

import torch
from torch import fx

from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import argument, kind, number, replace_with

_LARGEST = 8


def integer_power(candidate: Candidate, node: fx.Node) -> str | None:
    """x ** n as a product of n factors, by squaring; a negative n as the reciprocal of that."""
    exponent = 2 if kind(node) == "square" else number(argument(node, 1, "exponent")) if kind(node) == "pow" else None
    if exponent is None or exponent != int(exponent) or not 1 <= abs(exponent) <= _LARGEST:
        return None
    graph, x = candidate.graph, node.args[0]
    if not isinstance(x, fx.Node):
        return None
    with graph.inserting_before(node):
        new = _product(graph, x, int(abs(exponent)))
        if exponent < 0:
            new = graph.call_function(torch.reciprocal, (new,))
    replace_with(graph, node, new)
    return f"pow(x, {exponent:g}) -> {_written(int(exponent))}"


def _product(graph: fx.Graph, x: fx.Node, n: int) -> fx.Node:
    if n == 1:
        return x
    half = _product(graph, x, n // 2)
    whole = graph.call_function(operator.mul, (half, half))
    return graph.call_function(operator.mul, (whole, x)) if n % 2 else whole


def _written(n: int) -> str:
    product = " * ".join(["x"] * abs(n))
    return product if n > 0 else f"1 / ({product})"


def root_power(candidate: Candidate, node: fx.Node) -> str | None:
    """x ** 0.5 and x ** -0.5 as sqrt and rsqrt."""
    exponent = number(argument(node, 1, "exponent")) if kind(node) == "pow" else None
    if exponent not in (0.5, -0.5):
        return None
    graph, function = candidate.graph, torch.sqrt if exponent == 0.5 else torch.rsqrt
    with graph.inserting_before(node):
        new = graph.call_function(function, (node.args[0],))
    replace_with(graph, node, new)
    return f"pow(x, {exponent:g}) -> {function.__name__}(x)"


RULES = (integer_power, root_power)
