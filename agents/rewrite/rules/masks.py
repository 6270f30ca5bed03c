"""Comparisons, masks and choices as arithmetic."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from hf_adapters._placement import FP16_MAX
from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import argument, kind, number, replace_with, value

_LIMIT = 32752.0
"""Half of the largest float16: a score plus this does not overflow."""
_VIEWS = frozenset({"getitem", "narrow", "select", "unsqueeze", "squeeze"})


def _choice(node: fx.Node) -> tuple[fx.Node, Argument, Argument] | None:
    """(condition, value where true, value where false)."""
    if kind(node) == "where" and len(node.args) == 3:
        condition, yes, no = node.args
    elif kind(node) == "masked_fill":
        condition, yes, no = argument(node, 1, "mask"), argument(node, 2, "value"), node.args[0]
    else:
        return None
    return (condition, yes, no) if isinstance(condition, fx.Node) else None


def choice_by_numbers(candidate: Candidate, node: fx.Node) -> str | None:
    """where(c, a, b) with a constant mask c of the module as a * c + b * (1 - c), c being 0 and 1 as numbers."""
    found = _choice(node)
    source = tables.anchor(candidate)
    if found is None or source is None:
        return None
    condition, yes, no = found
    root, views = _constant_root(candidate, condition)
    if root is None:
        return None
    graph = candidate.graph
    with graph.inserting_before(node):
        keep = _numbers(candidate, root, views, source, False)
        drop = _numbers(candidate, root, views, source, True)
        if keep is None or drop is None:
            return None
        kept = graph.call_function(operator.mul, (yes, keep))
        dropped = graph.call_function(operator.mul, (no, drop))
        new = graph.call_function(operator.add, (kept, dropped))
    replace_with(graph, node, new)
    return "where(c, a, b) -> a * c + b * (1 - c) with the mask as numbers"


def _constant_root(candidate: Candidate, condition: fx.Node) -> tuple[fx.Node | None, list[fx.Node]]:
    """The module's own boolean tensor that a condition is a view of, and the views."""
    views: list[fx.Node] = []
    while kind(condition) in _VIEWS:
        views.insert(0, condition)
        condition = condition.args[0]  # type: ignore[assignment]
    held = value(condition)
    good = condition.op == "get_attr" and isinstance(held, Tensor) and held.dtype == torch.bool
    return (condition if good else None), views


def _numbers(candidate: Candidate, root: fx.Node, views: list[fx.Node], source: str, inverse: bool) -> fx.Node | None:
    table = fx.Graph()
    like, mask = table.placeholder("like"), table.placeholder("mask")
    cast = table.call_method("to", (mask, table.call_function(getattr, (like, "dtype"))))
    table.output(table.call_function(operator.sub, (1.0, cast)) if inverse else cast)
    name, about = ("dropped", "1 where the mask is not set.") if inverse else ("kept", "1 where the mask is set.")
    made = tables.add(candidate, name, table, (source, str(root.target)), about)
    places = {root: made}
    for view in views:
        if made is None:
            return None
        places[view] = made = candidate.graph.node_copy(view, lambda n: places.get(n, n))
    return made


def compare_with_tensor(candidate: Candidate, node: fx.Node) -> str | None:
    """x != n for integers, with n as a tensor: the device compares int64 tensors with each other only."""
    if kind(node) not in ("eq", "ne", "lt", "le", "gt", "ge") or not isinstance(node.args[0], fx.Node):
        return None
    held = value(node.args[0])
    if not isinstance(held, Tensor) or held.is_floating_point() or number(node.args[1]) is None:
        return None
    graph = candidate.graph
    with graph.inserting_before(node):
        filled = graph.call_function(torch.full_like, (node.args[0], node.args[1]))
    node.args = (node.args[0], filled)
    return f"{kind(node)} with a number -> with a tensor of it"


def plain_number(candidate: Candidate, node: fx.Node) -> str | None:
    """torch.tensor(n) as the number n: a tensor of rank 0 has no stick."""
    if kind(node) != "tensor" or not isinstance(node.args[0], (int, float)):
        return None
    made = node.args[0]
    for user in list(node.users):
        if kind(user) == "to":
            return None
        user.args = fx.map_arg(user.args, lambda n: made if n is node else n)
    return "torch.tensor(n) -> n"


def finite_limits(candidate: Candidate, node: fx.Node) -> str | None:
    """Numbers that stand for minus infinity as half the smallest float16: the softmax of either is 0."""
    changed = False

    def narrow(item: Any) -> Any:
        nonlocal changed
        if isinstance(item, float) and abs(item) > FP16_MAX:
            changed = True
            return _LIMIT if item > 0 else -_LIMIT
        return item

    source = node.args[0] if node.target is getattr else None
    if isinstance(source, fx.Node) and kind(source) == "finfo" and node.args[1] in ("min", "max"):
        return _half_limit(candidate, node)
    node.args = tuple(narrow(item) for item in node.args)
    node.kwargs = {key: narrow(item) for key, item in node.kwargs.items()}
    return f"numbers beyond float16 -> -{_LIMIT:g}" if changed else None


def _half_limit(candidate: Candidate, node: fx.Node) -> str | None:
    """Half of the smallest number, which a second mask can be added to without reaching infinity."""
    if all(kind(user) == "div" for user in node.users):
        return None
    with candidate.graph.inserting_after(node):
        half = candidate.graph.call_function(operator.truediv, (node, 2))
    node.replace_all_uses_with(half, delete_user_cb=lambda user: user is not half)
    return "the smallest number -> half of it"


RULES = (choice_by_numbers, compare_with_tensor, plain_number, finite_limits)
