"""Pieces of rows that are no whole sticks, padded with zeros from where rows are cut to where they are joined."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate, Table
from hf_adapters.agents.rewrite.forms import STICK, kind, replace_with, shape
from hf_adapters.agents.rewrite.pieces import PADDED, Pieces, merge_of, split_of
from hf_adapters.agents.rewrite.products import linear_of, rely


def spread_matrix(pieces: int, width: int, padded: int) -> fx.Graph:
    """`[pieces * width, pieces * padded]`: rows of `pieces * width` times it have zeros at the end of each piece."""
    graph = fx.Graph()
    like = graph.placeholder("like")
    dtype = graph.call_function(getattr, (like, "dtype"))
    eye = graph.call_function(torch.eye, (pieces * width,), {"dtype": dtype})
    graph.output(_spread(graph, eye, pieces, width, padded))
    return graph


def _spread(graph: fx.Graph, held: fx.Node, pieces: int, width: int, padded: int) -> fx.Node:
    """Zeros at the end of each piece of the last dimension."""
    cut = graph.call_method("unflatten", (held, -1, (pieces, width)))
    wide = graph.call_function(F.pad, (cut, (0, padded - width)))
    return graph.call_method("flatten", (wide, -2))


def _spread_rows(graph: fx.Graph, held: fx.Node, pieces: int, width: int, padded: int) -> fx.Node:
    """The same for the first dimension of a weight `[out, in]`."""
    turned = graph.call_method("transpose", (held, 0, 1))
    wide = _spread(graph, turned, pieces, width, padded)
    return graph.call_method("transpose", (wide, 0, 1))


def padded_pieces(candidate: Candidate, node: fx.Node) -> str | None:
    """All pieces of one width padded with zeros to whole sticks, from where rows are cut to where they are joined.

    Where a linear makes the rows or takes them, its weight is spread; elsewhere a matrix of 0 and 1 does it.
    """
    found = split_of(node) or merge_of(node)
    source = tables.anchor(candidate)
    if found is None or source is None or found[1] % STICK == 0:
        return None
    width = found[1]
    padded = math.ceil(width / STICK) * STICK
    pieces = Pieces(candidate, width, padded)
    joined = False
    for each in list(candidate.graph.nodes):
        cut, join = split_of(each), merge_of(each)
        if cut is not None and cut[1] == width and not pieces.holds(each.args[0]):
            pieces.note(_split(candidate, each, cut[0], width, padded, source))
        elif join is not None and pieces.holds(each.args[0]):
            joined |= _merge(candidate, each, join[0], width, padded, source)
        elif not pieces.carry(each):
            return None
    return f"pieces of {width} padded with zeros to {padded}, from where rows are cut to where they are joined" * joined


def _split(candidate: Candidate, node: fx.Node, pieces: int, width: int, padded: int, source: str) -> fx.Node:
    graph, rows = candidate.graph, node.args[0]
    linear = linear_of(candidate, rows)
    assert isinstance(rows, fx.Node)
    with graph.inserting_before(node):
        wide: Any = None
        if linear is not None and len(rows.users) == 1:
            about = f"with zeros at the end of each of {pieces} pieces of {width} outputs, up to {padded}."
            wide = linear.call(
                candidate,
                lambda g, w: _spread_rows(g, w, pieces, width, padded),
                lambda g, b: _spread(g, b, pieces, width, padded),
                about,
            )
            rely(candidate, linear.weight, "out_features")
        if wide is None:
            matrix = _matrix(candidate, pieces, width, padded, source)
            wide = graph.call_function(torch.matmul, (rows, matrix))
        sizes: Any = graph.call_function(getattr, (rows, "shape"))
        leading = [graph.call_function(operator.getitem, (sizes, i)) for i in range(len(shape(rows)) - 1)]
        new = graph.call_method("reshape", (wide, *leading, pieces, padded))
    wide.meta, new.meta = dict(rows.meta), {**node.meta, PADDED: True}
    # The sizes are those of what the linear was given.
    if linear is not None and wide.target is F.linear:
        sizes.args = (linear.input, "shape")
    replace_with(graph, node, new)
    return new


def _merge(candidate: Candidate, node: fx.Node, pieces: int, width: int, padded: int, source: str) -> bool:
    graph = candidate.graph
    with graph.inserting_before(node):
        flat = graph.call_method("flatten", (node.args[0], -2))
    flat.meta = {**node.meta, PADDED: True}
    (user, *more) = node.users
    linear = linear_of(candidate, user)
    if linear is not None and not more:
        node.replace_all_uses_with(flat)
        linear = linear_of(candidate, user)
        assert linear is not None
        with graph.inserting_before(user):
            about = f"with zeros at the end of each of {pieces} pieces of {width} inputs, up to {padded}."
            new = linear.call(candidate, lambda g, w: _spread(g, w, pieces, width, padded), None, about)
        if new is not None:
            rely(candidate, linear.weight, "in_features")
            new.meta = dict(user.meta)
            replace_with(graph, user, new)
            return True
    with graph.inserting_before(node):
        matrix = _matrix(candidate, pieces, width, padded, source)
        back = graph.call_method("transpose", (matrix, -1, -2))
        new = graph.call_function(torch.matmul, (flat, back))
    new.meta = dict(node.meta)
    replace_with(graph, node, new)
    return True


def _matrix(candidate: Candidate, pieces: int, width: int, padded: int, source: str) -> fx.Node | None:
    about = f"Spreads {pieces} pieces of {width} to {padded} each, with zeros at their ends."
    return tables.add(candidate, "spread", spread_matrix(pieces, width, padded), (source,), about)


def fold_into_linear(candidate: Candidate, node: fx.Node) -> str | None:
    """`linear(x) @ table` as one linear, whose weight is multiplied by the table beforehand."""
    if kind(node) != "matmul" or len(node.args) != 2:
        return None
    product, table = node.args
    if not isinstance(product, fx.Node) or not isinstance(table, fx.Node) or product.op != "call_module":
        return None
    linear = candidate.traced.module.get_submodule(str(product.target))
    made = candidate.tables.get(str(table.target)) if table.op == "get_attr" else None
    if type(linear) is not torch.nn.Linear or made is None or len(product.users) != 1:
        return None
    graph = candidate.graph
    with graph.inserting_before(node):
        path = str(product.target)
        weight = _folded(candidate, made, f"{path}.weight", "weight")
        bias = None if linear.bias is None else _folded(candidate, made, f"{path}.bias", "bias")
        if weight is None or (bias is None) != (linear.bias is None):
            return None
        new = graph.call_function(F.linear, (product.args[0], weight, bias))
    replace_with(graph, node, new)
    _forget(candidate)
    return "the table multiplied into the weight of the linear before it"


def _folded(candidate: Candidate, made: Table, source: str, role: str) -> fx.Node | None:
    """The weight `[out, in]` or the bias `[out]` of `x -> linear(x) @ table`."""
    graph = fx.Graph()
    places: dict[fx.Node, fx.Node] = {}
    stock = graph.placeholder(role)
    for node in made.graph.nodes:
        if node.op == "placeholder":
            places[node] = stock
        elif node.op == "output":
            table = places[node.args[0]]
        else:
            places[node] = graph.node_copy(node, lambda n: places[n])
    if role == "weight":
        table = graph.call_method("transpose", (table, -1, -2))
        graph.output(graph.call_function(torch.matmul, (table, stock)))
    else:
        graph.output(graph.call_function(torch.matmul, (stock, table)))
    name = source.rpartition(".")[0].replace(".", "_") + f"_{role}"
    return tables.add(candidate, name, graph, (source,), f"`{source}` times the table: {made.about}")


def _forget(candidate: Candidate) -> None:
    used = {str(n.target) for n in candidate.graph.nodes if n.op == "get_attr"}
    candidate.tables = {name: table for name, table in candidate.tables.items() if name in used}


RULES = (padded_pieces,)
IMPROVEMENTS = (fold_into_linear,)
