"""Pieces of rows that are no whole sticks: spread by a matrix of 0 and 1 until they are, and gathered again."""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx
from torch.nn import functional as F

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate, Table
from hf_adapters.agents.rewrite.forms import STICK, argument, kind, replace_with, shape


def _split(node: fx.Node) -> tuple[int, int] | None:
    """(pieces, width) when a reshape cuts rows into pieces that are no whole sticks."""
    if kind(node) not in ("reshape", "unflatten"):
        return None
    before, after = shape(node.args[0]), shape(node)
    if len(after) < 2 or len(after) != len(before) + 1:
        return None
    pieces, width = after[-2:]
    return (pieces, width) if pieces * width == before[-1] and width % STICK and before[-1] % STICK == 0 else None


def _merge(node: fx.Node) -> tuple[int, int] | None:
    """(pieces, width) when a reshape puts such pieces beside each other."""
    if kind(node) not in ("reshape", "flatten"):
        return None
    before, after = shape(node.args[0]), shape(node)
    if len(before) < 2 or len(after) != len(before) - 1:
        return None
    pieces, width = before[-2:]
    return (pieces, width) if pieces * width == after[-1] else None


def _keeps(node: fx.Node, width: int) -> bool:
    """Whether a reshape moves whole pieces of this width."""
    if kind(node) not in ("reshape", "expand") or len(node.args) < 2:
        return False
    before, after = shape(node.args[0]), shape(node)
    return bool(before and after) and before[-1] == after[-1] == width


def _resize(node: fx.Node, padded: int) -> None:
    """Give a reshape that keeps the last dimension the padded size there."""
    sizes = node.args[1] if isinstance(node.args[1], (tuple, list)) else node.args[1:]
    changed = [*sizes[:-1], padded if sizes[-1] != -1 else -1]
    node.args = (node.args[0], tuple(changed)) if isinstance(node.args[1], (tuple, list)) else (node.args[0], *changed)


def spread_matrix(pieces: int, width: int, padded: int) -> fx.Graph:
    """`[pieces * width, pieces * padded]`: rows of `pieces * width` times it have zeros at the end of each piece."""
    graph = fx.Graph()
    like = graph.placeholder("like")
    dtype = graph.call_function(getattr, (like, "dtype"))
    eye = graph.call_function(torch.eye, (pieces * width,), {"dtype": dtype})
    cut = graph.call_method("reshape", (eye, pieces * width, pieces, width))
    wide = graph.call_function(F.pad, (cut, (0, padded - width)))
    graph.output(graph.call_method("reshape", (wide, pieces * width, pieces * padded)))
    return graph


def padded_pieces(candidate: Candidate, node: fx.Node) -> str | None:
    """All pieces of one width padded with zeros to whole sticks, from where rows are cut to where they are joined."""
    found = _split(node) or _merge(node)
    source = tables.anchor(candidate)
    if found is None or source is None:
        return None
    _, width = found
    padded = math.ceil(width / STICK) * STICK
    splits = [n for n in candidate.graph.nodes if (cut := _split(n)) is not None and cut[1] == width]
    merges = [n for n in candidate.graph.nodes if (cut := _merge(n)) is not None and cut[1] == width]
    if not splits or not merges:
        return None
    for each in [n for n in candidate.graph.nodes if _keeps(n, width)]:
        _resize(each, padded)
    for each in splits:
        cut = _split(each)
        assert cut is not None
        _pad_split(candidate, each, cut[0], width, padded, source)
    for each in merges:
        cut = _merge(each)
        assert cut is not None
        _pad_merge(candidate, each, cut[0], width, padded, source)
    for each in candidate.graph.nodes:
        if kind(each) == "scaled_dot_product_attention" and argument(each, 6, "scale") is None:
            each.kwargs = {**each.kwargs, "scale": width**-0.5}
    return f"pieces of {width} padded with zeros to {padded}, spread and gathered by matrices of 0 and 1"


def _spread(candidate: Candidate, pieces: int, width: int, padded: int, source: str) -> fx.Node | None:
    about = f"Spreads {pieces} pieces of {width} to {padded} each, with zeros at their ends."
    return tables.add(candidate, "spread", spread_matrix(pieces, width, padded), (source,), about)


def _pad_split(candidate: Candidate, node: fx.Node, pieces: int, width: int, padded: int, source: str) -> None:
    graph = candidate.graph
    with graph.inserting_before(node):
        matrix = _spread(candidate, pieces, width, padded, source)
        wide = graph.call_function(torch.matmul, (node.args[0], matrix))
        sizes = (*_leading(graph, node), pieces, padded)
        replace_with(graph, node, graph.call_method("reshape", (wide, *sizes)))


def _pad_merge(candidate: Candidate, node: fx.Node, pieces: int, width: int, padded: int, source: str) -> None:
    graph = candidate.graph
    with graph.inserting_before(node):
        matrix = _spread(candidate, pieces, width, padded, source)
        flat = graph.call_method("flatten", (node.args[0], -2))
        back = graph.call_method("transpose", (matrix, -1, -2))
        replace_with(graph, node, graph.call_function(torch.matmul, (flat, back)))


def _leading(graph: fx.Graph, node: fx.Node) -> tuple[Any, ...]:
    sizes = graph.call_function(getattr, (node.args[0], "shape"))
    rank = len(shape(node.args[0]))
    return tuple(graph.call_function(operator.getitem, (sizes, i)) for i in range(rank - 1))


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
