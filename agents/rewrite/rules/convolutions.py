"""Convolutions as products: of patches with one matrix when the stride is the kernel, else of shifted rows."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import kind, replace_with, shape, value

_MOST_TAPS = 16


class _Convolution:
    """The parts of a 1-d convolution over tokens, from a call or from a child."""

    def __init__(self, candidate: Candidate, node: fx.Node) -> None:
        self.input: Any = node.args[0] if node.args else None
        self.weight: str | None = None
        self.bias: str | None = None
        self.stride: Any = None
        self.padding: Any = None
        self.dilation: Any = None
        self.groups: Any = None
        if node.op == "call_module":
            child = candidate.traced.module.get_submodule(str(node.target))
            if type(child) is nn.Conv1d and child.padding_mode == "zeros" and isinstance(child.padding, tuple):
                self.weight = f"{node.target}.weight"
                self.bias = None if child.bias is None else f"{node.target}.bias"
                self.stride, self.padding = child.stride[0], child.padding[0]
                self.dilation, self.groups = child.dilation[0], child.groups
        elif kind(node) == "conv1d":
            named = dict(
                zip(("input", "weight", "bias", "stride", "padding", "dilation", "groups"), node.args, strict=False)
            )
            named |= node.kwargs
            self.input, self.weight = named.get("input"), _parameter(named.get("weight"))
            self.bias = _parameter(named.get("bias"))
            sizes = [named.get("stride", 1), named.get("padding", 0), named.get("dilation", 1), named.get("groups", 1)]
            self.stride, self.padding, self.dilation, self.groups = (_single(size) for size in sizes)
            if named.get("bias") is not None and self.bias is None:
                self.weight = None


def _parameter(item: Any) -> str | None:
    """The parameter that a tensor is, views that change nothing looked through."""
    root = item
    while isinstance(root, fx.Node) and kind(root) in ("reshape", "unsqueeze", "squeeze"):
        root = root.args[0]
    if not isinstance(root, fx.Node) or root.op != "get_attr":
        return None
    return str(root.target) if shape(root) == shape(item) and torch.equal(value(root), value(item)) else None


def _single(item: Any) -> Any:
    item = item[0] if isinstance(item, (tuple, list)) and len(item) == 1 else item
    return value(item) if isinstance(item, fx.Node) else item


def taps(candidate: Candidate, node: fx.Node) -> str | None:
    """A 1-d convolution of stride 1 as a sum of one product for each tap, of rows shifted by whole tokens."""
    conv = _Convolution(candidate, node)
    if conv.weight is None or conv.stride != 1 or conv.dilation != 1 or not isinstance(conv.padding, int):
        return None
    held = _held(candidate, conv.weight)
    depthwise = conv.groups == held.shape[0] and held.shape[1] == 1
    if len(shape(conv.input)) != 3 or held.shape[2] > _MOST_TAPS or not (depthwise or conv.groups == 1):
        return None
    graph, count = candidate.graph, held.shape[2]
    with graph.inserting_before(node):
        rows = graph.call_method("transpose", (conv.input, 1, 2))
        if conv.padding:
            rows = graph.call_function(F.pad, (rows, (0, 0, conv.padding, conv.padding)))
        total: Any = None
        for tap in range(count):
            weight = tables.add(candidate, f"tap_{tap}", _tap(tap, depthwise), (conv.weight,), f"Weights of tap {tap}.")
            shift = _shifted(graph, rows, tap, count)
            function: Any = operator.mul if depthwise else torch.matmul
            term = graph.call_function(function, (shift, weight))
            total = term if total is None else graph.call_function(operator.add, (total, term))
        if conv.bias is not None:
            total = graph.call_function(operator.add, (total, graph.get_attr(conv.bias)))
        new = graph.call_method("transpose", (total, 1, 2))
    replace_with(graph, node, new)
    return f"convolution with {count} taps -> {count} products of shifted rows"


def _held(candidate: Candidate, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    found: Tensor = getattr(candidate.traced.module.get_submodule(owner), name)
    return found


def _shifted(graph: fx.Graph, rows: fx.Node, tap: int, count: int) -> fx.Node:
    last = tap - count + 1
    window = slice(tap or None, last or None)
    return graph.call_function(operator.getitem, (rows, (slice(None), window))) if count > 1 else rows


def _tap(tap: int, depthwise: bool) -> fx.Graph:
    """`[channels]` of a depthwise weight `[channels, 1, taps]`, or `[in, out]` of `[out, in, taps]`."""
    graph = fx.Graph()
    weight = graph.placeholder("weight")
    index = (slice(None), 0, tap) if depthwise else (slice(None), slice(None), tap)
    part = graph.call_function(operator.getitem, (weight, index))
    part = part if depthwise else graph.call_method("transpose", (part, 0, 1))
    graph.output(graph.call_method("contiguous", (part,)))
    return graph


RULES = (taps,)
