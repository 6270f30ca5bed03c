"""Lookups in tables, and tensors of rank 0 that the looked-up rows are scaled by."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import argument, is_float, kind, replace_with, shape, value

_ARITHMETIC = ("add", "sub", "mul", "div")


def only_row(candidate: Candidate, node: fx.Node) -> str | None:
    """A lookup in a table of one row as that row, for each index: there is no other."""
    found = _lookup(candidate, node)
    if found is None:
        return None
    indices, path = found
    weight: Any = candidate.traced.module.get_parameter(path)
    if weight.shape[0] != 1:
        return None
    graph, owner = candidate.graph, path.rpartition(".")[0]
    with graph.inserting_before(node):
        table = graph.get_attr(path)
        sizes = graph.call_function(getattr, (indices, "shape"))
        each = [graph.call_function(operator.getitem, (sizes, i)) for i in range(len(shape(indices)))]
        new = graph.call_method("expand", (table, *each, weight.shape[1]))
    replace_with(graph, node, new)
    counted = f"{owner}.num_embeddings" if owner else "num_embeddings"
    candidate.relies = tuple(
        dict.fromkeys((*candidate.relies, counted, counted.replace("num_embeddings", "embedding_dim")))
    )
    return "lookup in a table of one row -> that row, expanded"


def _lookup(candidate: Candidate, node: fx.Node) -> tuple[fx.Node, str] | None:
    """(indices, path of the table's parameter) of a plain lookup."""
    if node.op == "call_module":
        child = candidate.traced.module.get_submodule(str(node.target))
        indices = node.args[0] if node.args else None
        plain = type(child) is nn.Embedding and child.max_norm is None
        return (indices, f"{node.target}.weight") if plain and isinstance(indices, fx.Node) else None
    if kind(node) != "embedding":
        return None
    indices, table = argument(node, 0, "input"), argument(node, 1, "weight")
    if not isinstance(indices, fx.Node) or not isinstance(table, fx.Node) or table.op != "get_attr":
        return None
    return (indices, str(table.target)) if argument(node, 3, "max_norm") is None else None


def scalar_as_row(candidate: Candidate, node: fx.Node) -> str | None:
    """Arithmetic with a rank-0 tensor of the module as arithmetic with a row of it: rank 0 has no stick."""
    if kind(node) not in _ARITHMETIC or len(node.args) != 2 or not is_float(node):
        return None
    for index, item in enumerate(node.args):
        path = _scalar(item)
        other: Any = node.args[1 - index]
        if path is None or not is_float(other) or not shape(other) or value(other).dtype != value(node).dtype:
            continue
        source = tables.anchor(candidate)
        if source is None:
            return None
        with candidate.graph.inserting_before(node):
            row = tables.add(
                candidate, "row", _row(shape(other)[-1]), (source, path), f"`{path}`, once for each column."
            )
        if row is None:
            return None
        node.update_arg(index, row)
        candidate.graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))
        return "tensor of rank 0 -> row of it"
    return None


def _scalar(item: Any) -> str | None:
    """The path of the rank-0 floating tensor that a node is, casts looked through."""
    while isinstance(item, fx.Node) and kind(item) == "to":
        item = item.args[0]
    if not isinstance(item, fx.Node) or item.op != "get_attr":
        return None
    held = value(item)
    return str(item.target) if isinstance(held, Tensor) and held.dim() == 0 and held.is_floating_point() else None


def _row(width: int) -> fx.Graph:
    graph = fx.Graph()
    like, scalar = graph.placeholder("like"), graph.placeholder("scalar")
    cast = graph.call_method("to", (scalar, graph.call_function(getattr, (like, "dtype"))))
    graph.output(graph.call_method("contiguous", (graph.call_function(torch.broadcast_to, (cast, (width,))),)))
    return graph


RULES = (only_row, scalar_as_row)
