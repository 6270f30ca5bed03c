"""What operations become between where rows are cut into pieces and where these are joined, when pieces are padded."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from hf_adapters.agents.rewrite import tables
from hf_adapters.agents.rewrite.candidate import Candidate
from hf_adapters.agents.rewrite.forms import POINTWISE, argument, kind, last_dim, number, shape
from hf_adapters.agents.rewrite.products import with_zeros

_PASSING = frozenset({"getitem", "unsqueeze", "to", "squeeze", "select", "narrow", "roll", "flip", "repeat_interleave"})
PADDED = "padded"
"""Marks reshapes that cut rows into padded pieces or join these."""
_SIZED = frozenset({"reshape", "expand"})


def split_of(node: fx.Node) -> tuple[int, int] | None:
    """(pieces, width) when a reshape cuts rows into pieces."""
    if kind(node) not in ("reshape", "unflatten") or node.meta.get(PADDED):
        return None
    before, after = shape(node.args[0]), shape(node)
    if len(after) < 2 or len(after) != len(before) + 1:
        return None
    pieces, width = after[-2:]
    return (pieces, width) if pieces * width == before[-1] else None


def merge_of(node: fx.Node) -> tuple[int, int] | None:
    """(pieces, width) when a reshape puts pieces beside each other."""
    if kind(node) not in ("reshape", "flatten") or node.meta.get(PADDED):
        return None
    before, after = shape(node.args[0]), shape(node)
    if len(before) < 2 or len(after) != len(before) - 1:
        return None
    pieces, width = before[-2:]
    return (pieces, width) if pieces * width == after[-1] else None


class Pieces:
    """Which nodes of a graph hold pieces that are padded by now; nodes keep the shapes they had before.

    Attributes:
        width: of a piece.
        padded: what it is padded to.
    """

    def __init__(self, candidate: Candidate, width: int, padded: int) -> None:
        self.candidate, self.width, self.padded = candidate, width, padded
        self._axes: dict[fx.Node, int] = {}

    def note(self, node: fx.Node, axis: int = -1) -> None:
        """The node holds padded pieces along this dimension, the last or the one before it."""
        self._axes[node] = axis

    def holds(self, node: Any) -> bool:
        """Whether its last dimension is a padded piece."""
        return self._axes.get(node) == -1

    def carry(self, node: fx.Node) -> bool:
        """Change an operation for its padded operands; False when nobody knows how."""
        if not any(n in self._axes for n in node.all_input_nodes):
            return True
        name = kind(node)
        if name == "getattr" or name == "size":
            return all(last not in (-1, len(shape(node.args[0])) - 1) for last in _read(node))
        for kinds, change in (
            (POINTWISE, self._pointwise), (_SIZED, self._sized), (_PASSING, self._passed),
            (("transpose", "permute", "swapaxes"), self._turned), (("cat", "stack"), self._joined),
            (("matmul",), self._product), (("scaled_dot_product_attention",), self._attention),
            (("mean", "sum"), self._reduced),
        ):  # fmt: skip
            if name in kinds:
                return change(node)
        return False

    def _axis(self, node: Any) -> int | None:
        return self._axes.get(node) if isinstance(node, fx.Node) else None

    def _pointwise(self, node: fx.Node) -> bool:
        axes = {self._axes[n] for n in node.all_input_nodes if n in self._axes}
        if len(axes) != 1:
            return False
        (axis,) = axes
        for each in node.all_input_nodes:
            if each not in self._axes and shape(each)[axis:][:1] == (self.width,):
                wide = self._widened(node, each, axis)
                if wide is None:
                    return False
                node.replace_input_with(each, wide)
        self.note(node, axis)
        return True

    def _widened(self, node: fx.Node, each: fx.Node, axis: int) -> fx.Node | None:
        """An operand that is not padded yet."""
        extra = self.padded - self.width
        if not tables.is_constant(each):
            return with_zeros(self.candidate.graph, each, extra, axis)
        with self.candidate.graph.inserting_before(node):
            about = f"`{each.target}` with {extra} zeros at its end."
            return tables.padded(self.candidate, each, (0, extra) if axis == -1 else (0, 0, 0, extra), about)

    def _sized(self, node: fx.Node) -> bool:
        """A reshape or expansion that keeps the pieces."""
        axis = self._axis(node.args[0]) or 0
        before, after = shape(node.args[0]), shape(node)
        if not axis or len(after) < 2 or before[axis:] != after[axis:] or len(node.args) < 2:
            return False
        packed = isinstance(node.args[1], (tuple, list))
        sizes: list[Any] = list(node.args[1]) if packed else list(node.args[1:])  # type: ignore[arg-type]
        if sizes[axis] != -1:
            sizes[axis] = self.padded
        node.args = (node.args[0], tuple(sizes)) if packed else (node.args[0], *sizes)
        self.note(node, axis)
        return True

    def _passed(self, node: fx.Node) -> bool:
        axis = self._axis(node.args[0])
        if axis is None or shape(node)[axis:][:1] != (self.width,) or shape(node)[axis:] != shape(node.args[0])[axis:]:
            return False
        self.note(node, axis)
        return True

    def _turned(self, node: fx.Node) -> bool:
        axis, rank = self._axis(node.args[0]), len(shape(node))
        if axis is None:
            return False
        dims = list(range(rank))
        if kind(node) == "permute":
            order: Any = node.args[1] if isinstance(node.args[1], (tuple, list)) else node.args[1:]
            dims = [dim % rank for dim in order]
        else:
            a, b = (int(argument(node, i, name)) % rank for i, name in ((1, "dim0"), (2, "dim1")))
            dims[a], dims[b] = dims[b], dims[a]
        now = dims.index(rank + axis) - rank
        self.note(node, now)
        return now in (-1, -2)

    def _joined(self, node: fx.Node) -> bool:
        parts = node.args[0]
        dim = argument(node, 1, "dim", 0)
        apart = kind(node) == "cat" and not last_dim(dim, len(shape(node)))
        if not isinstance(parts, (tuple, list)) or not apart or not all(self.holds(part) for part in parts):
            return False
        self.note(node)
        return True

    def _product(self, node: fx.Node) -> bool:
        left, right = node.args[:2]
        first, second = self._axis(left), self._axis(right)
        if first == -1 and second is None and tables.is_constant(right) and isinstance(right, fx.Node):
            return self._by_constant(node, right)
        if first == -1 and second == -2:
            return True
        if first is None and second == -1:
            self.note(node)
            return True
        return False

    def _by_constant(self, node: fx.Node, right: fx.Node) -> bool:
        """Rows of zeros for the ends of pieces; columns where a piece comes of it again."""
        extra = self.padded - self.width
        again = shape(right)[-1] == self.width
        with self.candidate.graph.inserting_before(node):
            about = f"`{right.target}` for pieces with {extra} zeros at their end."
            wide = tables.padded(self.candidate, right, (0, extra if again else 0, 0, extra), about)
        if wide is None:
            return False
        node.update_arg(1, wide)
        if again:
            self.note(node)
        return True

    def _attention(self, node: fx.Node) -> bool:
        if not all(self.holds(argument(node, i, name)) for i, name in enumerate(("query", "key", "value"))):
            return False
        if argument(node, 6, "scale") is None:
            node.kwargs = {**node.kwargs, "scale": self.width**-0.5}
        self.note(node)
        return True

    def _reduced(self, node: fx.Node) -> bool:
        """Sums over pieces are those of their elements, averages divide by how many there were."""
        dim = argument(node, 1, "dim")
        dim = dim[0] if isinstance(dim, (tuple, list)) and len(dim) == 1 else dim
        rank = len(shape(node.args[0]))
        if number(dim) is None or not self.holds(node.args[0]) or not last_dim(dim, rank):
            return False
        if kind(node) == "mean":
            graph = self.candidate.graph
            with graph.inserting_before(node):
                total = graph.call_function(torch.sum, node.args, node.kwargs)
                new = graph.call_function(operator.truediv, (total, self.width))
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
        return True


def _read(node: fx.Node) -> list[Any]:
    """Dimensions whose sizes are read of a shape."""
    if kind(node) == "size":
        return [argument(node, 1, "dim", -1)]
    if node.args[1] != "shape":
        return []
    return [user.args[1] if user.target is operator.getitem else -1 for user in node.users]


__all__ = ["PADDED", "Pieces", "merge_of", "split_of"]
