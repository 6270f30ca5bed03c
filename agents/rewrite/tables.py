"""Making the constant tensors that rules multiply by."""

from __future__ import annotations

import torch
from torch import Tensor, fx

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
    while unique in candidate.tables or hasattr(candidate.traced.module, unique):
        unique, count = f"{name}_{count}", count + 1
    candidate.tables[unique] = Table(name=unique, graph=graph, sources=sources, about=about)
    return _node(candidate, unique, value)


def _node(candidate: Candidate, name: str, value: Tensor) -> fx.Node:
    with_value = candidate.graph.create_node("get_attr", name)
    with_value.meta["value"] = with_value.meta["other"] = value
    return with_value
