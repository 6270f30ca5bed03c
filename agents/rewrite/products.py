"""Products of features with constant weights, however a graph writes them, and rows that end in zeros."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import argument, kind, shape

Change = Callable[[fx.Graph, fx.Node], fx.Node]
_ENDS = "end"
"""Marks what `followed_by` made."""


@dataclass(frozen=True)
class Linear:
    """`x -> x @ weight.T + bias` with constants of the module.

    Attributes:
        input: `[..., in]`.
        weight: path or table of `[out, in]`.
        bias: of `[out]`, None without one.
        child: path of the `nn.Linear` that is called, None for a call of the function.
    """

    input: fx.Node
    weight: str
    bias: str | None
    child: str | None

    def call(self, candidate: Candidate, weight: Change | None, bias: Change | None, about: str) -> fx.Node | None:
        """The same with changed constants, at the insertion point of the graph; None when a table cannot be made."""
        made = [
            self._constant(candidate, path, change, about)
            for path, change in ((self.weight, weight), (self.bias, bias))
            if path is not None
        ]
        if any(each is None for each in made):
            return None
        return candidate.graph.call_function(F.linear, (self.input, *made))

    def _constant(self, candidate: Candidate, path: str, change: Change | None, about: str) -> fx.Node | None:
        node = _held(candidate, path)
        if change is None:
            return node
        made = tables.changed(candidate, node, change, f"`{path}` {about}")
        candidate.graph.erase_node(node)
        return made


def _held(candidate: Candidate, path: str) -> fx.Node:
    node = candidate.graph.create_node("get_attr", path)
    table = candidate.tables.get(path)
    if table is not None:
        held = table.value(candidate.traced.module)
    else:
        owner, _, name = path.rpartition(".")
        held = getattr(candidate.traced.module.get_submodule(owner), name)
    node.meta["value"] = node.meta["other"] = held
    return node


def linear_of(candidate: Candidate, node: Any) -> Linear | None:
    """The linear that a node computes."""
    if not isinstance(node, fx.Node):
        return None
    if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
        child = candidate.traced.module.get_submodule(str(node.target))
        if type(child) is nn.Linear and isinstance(node.args[0], fx.Node):
            bias = None if child.bias is None else f"{node.target}.bias"
            return Linear(node.args[0], f"{node.target}.weight", bias, str(node.target))
    if kind(node) == "linear":
        x, weight, bias = (argument(node, i, name) for i, name in enumerate(("input", "weight", "bias")))
        constant = tables.is_constant(weight) and (bias is None or tables.is_constant(bias))
        if constant and isinstance(x, fx.Node):
            return Linear(x, str(weight.target), None if bias is None else str(bias.target), None)
    return None


def rely(candidate: Candidate, path: str, count: str) -> None:
    """Note that a form depends on the size of a constant: `count` is that attribute's name in an `nn.Linear`."""
    if path in candidate.tables:
        return
    owner, _, name = path.rpartition(".")
    linear = type(candidate.traced.module.get_submodule(owner)) is nn.Linear
    where = f"{owner}." if owner else ""
    relied = where + (count if linear else f"{name}.shape")
    candidate.relies = tuple(dict.fromkeys((*candidate.relies, relied)))


def with_zeros(graph: fx.Graph, x: fx.Node, extra: int, dim: int = -1) -> fx.Node:
    """`x` followed by `extra` zeros along one of its last two dimensions, written after `x` once."""
    return followed_by(graph, x, extra, "new_zeros", dim)


def followed_by(graph: fx.Graph, x: fx.Node, extra: int, filler: str, dim: int = -1) -> fx.Node:
    """`x` followed by what the method `filler` gives for a size: `new_zeros` or `new_ones`."""
    mark = (x, extra, filler, dim)
    for user in x.users:
        if user.meta.get(_ENDS) == mark:
            return user
    rank = len(shape(x))
    with graph.inserting_before(_after(x)):
        sizes: Any = graph.call_function(getattr, (x, "shape"))
        new = [extra if i == dim % rank else graph.call_function(operator.getitem, (sizes, i)) for i in range(rank)]
        rest = graph.call_method(filler, (x, tuple(new)))
        made = graph.call_function(torch.cat, ([x, rest], dim))
    made.meta[_ENDS] = mark
    return made


def _after(x: fx.Node) -> fx.Node:
    node = x.next
    while node.op == "placeholder":
        node = node.next
    return node
