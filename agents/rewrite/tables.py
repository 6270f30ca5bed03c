"""Making the constant tensors that rules multiply by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from hf_adapters.agents.rewrite.candidate import Candidate, Table, text_of


def anchor(candidate: Candidate) -> str | None:
    """A floating parameter of the module: tables are kept where it is, in its dtype; None when it has none."""
    for name, parameter in candidate.traced.module.named_parameters():
        if parameter.is_floating_point():
            return name
    return None


def add(candidate: Candidate, name: str, graph: fx.Graph, sources: tuple[str, ...], about: str) -> fx.Node | None:
    """A node for a new table, at the current insertion point; an equal table that exists is used again.

    Returns None when the table is no finite tensor.
    """
    made = Table(name=name, graph=graph, sources=sources, about=about)
    try:
        value = made.value(candidate.traced.module)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return None
    if not isinstance(value, Tensor) or not bool(torch.isfinite(value).all()):
        return None
    for other in candidate.tables.values():
        if other.sources == sources and text_of(other.graph) == text_of(graph):
            return _node(candidate, other.name, value)
    unique, count = name, 2
    held = (candidate.traced.module, candidate.traced.placed)
    while unique in candidate.tables or any(hasattr(module, unique) for module in held):
        unique, count = f"{name}_{count}", count + 1
    candidate.tables[unique] = Table(name=unique, graph=graph, sources=sources, about=about)
    return _node(candidate, unique, value)


def _node(candidate: Candidate, name: str, value: Tensor) -> fx.Node:
    with_value = candidate.graph.create_node("get_attr", name)
    with_value.meta["value"] = with_value.meta["other"] = value
    return with_value


@dataclass
class Making:
    """A table that is made from constants of the module: parameters, buffers and tables.

    Attributes:
        candidate: the form that gets it.
        graph: of the table.
        sources: path of a tensor of the module -> its placeholder.
    """

    candidate: Candidate
    graph: fx.Graph = field(default_factory=fx.Graph)
    sources: dict[str, fx.Node] = field(default_factory=dict)

    def take(self, constant: fx.Node) -> fx.Node:
        """What a `get_attr` node of the candidate stands for, in the table's graph."""
        table = self.candidate.tables.get(str(constant.target))
        if table is None:
            return self._source(str(constant.target))
        given = iter(table.sources)
        places: dict[fx.Node, fx.Node] = {}
        for node in table.graph.nodes:
            if node.op == "placeholder":
                places[node] = self._source(next(given))
            elif node.op != "output":
                places[node] = self.graph.node_copy(node, lambda n: places[n])
        (output,) = (node for node in table.graph.nodes if node.op == "output")
        return places[output.args[0]]

    def _source(self, path: str) -> fx.Node:
        if path not in self.sources:
            self.sources[path] = self.graph.placeholder(path.replace(".", "_"))
        return self.sources[path]

    def done(self, name: str, result: fx.Node, about: str) -> fx.Node | None:
        """See `add`."""
        self.graph.output(result)
        return add(self.candidate, name, self.graph, tuple(self.sources), about)


def is_constant(node: Any) -> bool:
    """Whether a node is a floating tensor that the module holds."""
    return isinstance(node, fx.Node) and node.op == "get_attr" and isinstance(node.meta.get("value"), Tensor)


def padded(candidate: Candidate, constant: fx.Node, sides: tuple[int, ...], about: str) -> fx.Node | None:
    """A constant with zeros around it: `sides` as `F.pad` takes them."""
    return changed(candidate, constant, lambda graph, held: graph.call_function(F.pad, (held, sides)), about)


def changed(
    candidate: Candidate, constant: fx.Node, change: Callable[[fx.Graph, fx.Node], fx.Node], about: str
) -> fx.Node | None:
    """A table made from one constant, called like it."""
    making = Making(candidate)
    return making.done(str(constant.target).replace(".", "_"), change(making.graph, making.take(constant)), about)
