"""A function of some features beside the others, as one of all of them: the others times 1 plus 0."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import argument, is_float, kind, last_dim, replace_with, shape, value
from hf_adapters.agents.rewrite.products import followed_by
from hf_adapters.agents.rewrite.rules.linear_maps import map_between


def whole_rows(candidate: Candidate, node: fx.Node) -> str | None:
    """`cat([f(x[..., :n]), x[..., n:]])` as `f` of whole rows, for sums of products of moved features.

    cat([a + b, r]) = cat([a, r]) + cat([b, 0]); cat([a * c, r]) = cat([a, r]) * cat([c, 1]).
    """
    if kind(node) != "cat" or not last_dim(argument(node, 1, "dim", 0), len(shape(node))):
        return None
    parts: Any = node.args[0]
    if not isinstance(parts, (tuple, list)) or len(parts) != 2 or not all(is_float(part) for part in parts):
        return None
    first, rest = parts
    x: Any = rest.args[0] if kind(rest) == "getitem" else None
    source, count = tables.anchor(candidate), shape(first)[-1]
    if source is None or not is_float(x) or not _is_part(rest, x, slice(count, None)) or first is x:
        return None
    with candidate.graph.inserting_before(node):
        new = _Rows(candidate, x, count, source).whole(first, True)
    if new is None or new is x:
        return None
    replace_with(candidate.graph, node, new)
    return "features beside others -> whole rows, the others times 1 plus 0"


def _is_part(node: Any, x: fx.Node, columns: slice) -> bool:
    """Whether a node is these columns of `x`."""
    if kind(node) != "getitem" or node.args[0] is not x:
        return False
    held, whole = value(node), value(x)
    return isinstance(held, Tensor) and torch.equal(held, whole[..., columns])


@dataclass(frozen=True)
class _Rows:
    """Makes nodes as wide as `x`, of whose first `count` columns something is computed."""

    candidate: Candidate
    x: fx.Node
    count: int
    source: str

    def whole(self, node: fx.Node, keeps: bool) -> fx.Node | None:
        """The node followed by the other columns of `x` when it `keeps` them, by zeros otherwise."""
        if keeps and _is_part(node, self.x, slice(None, self.count)):
            return self.x
        if kind(node) in ("add", "sub") and len(node.args) == 2:
            return self._both(operator.add if kind(node) == "add" else operator.sub, node, keeps)
        if kind(node) == "mul" and len(node.args) == 2:
            return self._scaled(node, keeps)
        return None if keeps else self._moved(node)

    def _both(self, function: Callable[..., Any], node: fx.Node, keeps: bool) -> fx.Node | None:
        left, right = node.args
        if not isinstance(left, fx.Node) or not isinstance(right, fx.Node):
            return None
        first, second = self.whole(left, keeps), self.whole(right, False)
        if first is None or second is None:
            return None
        return self.candidate.graph.call_function(function, (first, second))

    def _scaled(self, node: fx.Node, keeps: bool) -> fx.Node | None:
        for part, factor in (node.args, node.args[::-1]):
            if not isinstance(part, fx.Node) or not isinstance(factor, fx.Node) or self._depends(factor):
                continue
            rows = self.whole(part, keeps)
            if rows is None or shape(factor)[-1:] != (self.count,):
                return None
            extra = shape(self.x)[-1] - self.count
            wide = followed_by(self.candidate.graph, factor, extra, "new_ones" if keeps else "new_zeros")
            return self.candidate.graph.call_function(operator.mul, (rows, wide))
        return None

    def _depends(self, node: fx.Node) -> bool:
        pending, seen = [node], {node}
        while pending:
            for above in pending.pop().all_input_nodes:
                if above not in seen:
                    seen.add(above)
                    pending.append(above)
        return self.x in seen

    def _moved(self, node: fx.Node) -> fx.Node | None:
        """Columns of `x` in another order, some of them negated, and zeros."""
        moves = map_between(self.candidate, self.x, node)
        if moves is None:
            return None
        graph, (output,) = moves, [n for n in moves.nodes if n.op == "output"]
        with graph.inserting_before(output):
            wide = graph.call_function(F.pad, (output.args[0], (0, shape(self.x)[-1] - self.count)))
        output.args = (wide,)
        about = "What the stock form makes of the identity, and columns of zeros."
        matrix = tables.add(self.candidate, "moves", graph, (self.source,), about)
        return None if matrix is None else self.candidate.graph.call_function(torch.matmul, (self.x, matrix))


RULES = (whole_rows,)
