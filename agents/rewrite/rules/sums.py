"""Products that sum over no whole sticks: both operands followed by zeros, which add nothing (D6.11)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import STICK, kind, other, replace_with, shape, value
from hf_adapters.agents.rewrite.products import linear_of, rely, with_zeros

_STEP = "zeros at the end of both operands of a product, which then sums over whole sticks"


def whole_sums(candidate: Candidate, node: fx.Node) -> str | None:
    """A product over features that are no whole sticks, as one over those and zeros."""
    linear = linear_of(candidate, node)
    if linear is not None:
        return _of_linear(candidate, node)
    if kind(node) != "matmul" or len(node.args) != 2 or node.kwargs:
        return None
    left, right = node.args
    if not _crooked(left) or not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or len(shape(right)) < 2:
        return None
    extra = -shape(left)[-1] % STICK
    graph = candidate.graph
    with graph.inserting_before(node):
        if tables.is_constant(right):
            about = f"`{right.target}` with {extra} rows of zeros, for inputs of whole sticks."
            below: Any = tables.padded(candidate, right, (0, 0, 0, extra), about)
            rely(candidate, str(right.target), "out_features")
        else:
            below = with_zeros(graph, right, extra, -2)
    if below is None:
        return None
    node.args = (with_zeros(graph, left, extra), below)
    return _STEP


def _of_linear(candidate: Candidate, node: fx.Node) -> str | None:
    linear = linear_of(candidate, node)
    assert linear is not None
    if not _crooked(linear.input):
        return None
    extra = -shape(linear.input)[-1] % STICK
    with candidate.graph.inserting_before(node):
        about = f"with {extra} columns of zeros, for inputs of whole sticks."
        new = linear.call(candidate, lambda g, w: g.call_function(F.pad, (w, (0, extra))), None, about)
    if new is None:
        return None
    new.update_arg(0, with_zeros(candidate.graph, linear.input, extra))
    new.meta = dict(node.meta)
    replace_with(candidate.graph, node, new)
    rely(candidate, linear.weight, "in_features")
    return _STEP


def _crooked(node: Any) -> bool:
    """Whether the rows have the same length in both calls, and that is no whole number of sticks."""
    size = shape(node)[-1:]
    if not size or size[0] % STICK == 0:
        return False
    again = other(node)
    return isinstance(again, Tensor) and again.shape[-1] == size[0] and value(node).dtype != torch.bool


RULES = (whole_sums,)
