"""Telling sizes, attributes and constants apart, by comparing two traces of one forward."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

_SMALL = 4
"""Integers up to this one are more likely dimensions and ranks than values of an attribute."""

_LIMITS = {torch.finfo(torch.float32).min: "min", torch.finfo(torch.float32).max: "max"}


@dataclass
class Sizes:
    """What the numbers of a trace can stand for.

    Attributes:
        dims: (size in the first trace, size in the second) -> (placeholder, dimension).
        floats: float value -> the one attribute that holds it.
        ints: likewise for integers.
        names: attribute names by value, also where several hold it.
        floating: placeholders that are floating tensors.
        fixed: attributes whose value was found as a number that could not be traced to one of them.
    """

    dims: dict[tuple[int, int], tuple[str, int]]
    floats: dict[float, str]
    ints: dict[int, str]
    names: dict[Any, list[str]]
    floating: Collection[str]
    fixed: set[str] = field(default_factory=set)

    @classmethod
    def of(
        cls,
        first: Mapping[str, tuple[int, ...]],
        second: Mapping[str, tuple[int, ...]],
        attributes: Mapping[str, Any],
        floating: Collection[str],
    ) -> Sizes:
        """Collect them from the inputs' shapes in both traces and the module's plain attributes."""
        dims: dict[tuple[int, int], tuple[str, int]] = {}
        for name, shape in first.items():
            for dim, (a, b) in enumerate(zip(shape, second[name], strict=True)):
                if a != b:
                    dims.setdefault((a, b), (name, dim))
        names: dict[Any, list[str]] = {}
        for name, value in attributes.items():
            if type(value) in (int, float) and not name.startswith("_"):
                names.setdefault(value, []).append(name)
        single = {value: found[0] for value, found in names.items() if len(found) == 1}
        return cls(
            dims=dims,
            floats={v: n for v, n in single.items() if type(v) is float and v not in (0.0, 1.0)},
            ints={v: n for v, n in single.items() if type(v) is int and v > _SMALL},
            names=names,
            floating=floating,
        )

    def expression(self, graph: fx.Graph, inputs: Mapping[str, fx.Node], a: int, b: int) -> fx.Node | None:
        """A node that computes an integer that is `a` in one trace and `b` in the other; None when nothing fits."""
        if (a, b) in self.dims:
            return self._dim(graph, inputs, (a, b))
        for (p, q), (r, s) in itertools.combinations_with_replacement(self.dims, 2):
            if (p * r, q * s) == (a, b):
                return graph.call_function(
                    operator.mul, (self._dim(graph, inputs, (p, q)), self._dim(graph, inputs, (r, s)))
                )
        for p, q in self.dims:
            if a % p == 0 and a // p * q == b:
                return graph.call_function(operator.mul, (self._dim(graph, inputs, (p, q)), a // p))
            if p - a == q - b:
                return graph.call_function(operator.sub, (self._dim(graph, inputs, (p, q)), p - a))
        return None

    def _dim(self, graph: fx.Graph, inputs: Mapping[str, fx.Node], pair: tuple[int, int]) -> fx.Node:
        name, dim = self.dims[pair]
        shape = graph.call_function(getattr, (inputs[name], "shape"))
        return graph.call_function(operator.getitem, (shape, dim))


def unify(first: fx.Graph, second: fx.Graph, sizes: Sizes) -> fx.Graph:
    """The graph that both are instances of.

    Raises:
        ValueError: they do not do the same, or a number changes in a way that the sizes do not explain.
    """
    left, right = list(first.nodes), list(second.nodes)
    if [(n.op, n.target) for n in left] != [(n.op, n.target) for n in right]:
        raise ValueError("what it does depends on the sizes of its inputs")
    joined = _Joining(sizes)
    for a, b in zip(left, right, strict=True):
        joined.add(a, b)
    return joined.graph


class _Joining:
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.graph = fx.Graph()
        self.done: dict[fx.Node, fx.Node] = {}
        self.inputs: dict[str, fx.Node] = {}

    def add(self, a: fx.Node, b: fx.Node) -> None:
        """Add the common form of two nodes."""
        if a.op == "output":
            self.graph.output(self._join(a.args[0], b.args[0], False))
            return
        shaped = a.op in ("call_function", "call_method") and _takes_numbers(a)
        args, kwargs = self._join(a.args, b.args, shaped), self._join(a.kwargs, b.kwargs, shaped)
        node = self.graph.create_node(a.op, a.target, args, kwargs, name=a.name)
        self.done[a] = node
        if a.op == "placeholder":
            self.inputs[str(a.target)] = node

    def _join(self, a: Any, b: Any, shaped: bool) -> Any:
        if isinstance(a, fx.Node):
            return self.done[a]
        if isinstance(a, (tuple, list)):
            if len(a) != len(b):
                raise ValueError("the rank of something depends on the sizes of its inputs")
            return type(a)(self._join(x, y, shaped) for x, y in zip(a, b, strict=True))
        if isinstance(a, dict):
            return {key: self._join(value, b[key], shaped) for key, value in a.items()}
        if isinstance(a, slice):
            parts = ("start", "stop", "step")
            return slice(*(self._join(getattr(a, p), getattr(b, p), shaped) for p in parts))
        return self._scalar(a, b, shaped)

    def _scalar(self, a: Any, b: Any, shaped: bool) -> Any:
        if isinstance(a, torch.dtype):
            return a if a == b else self.graph.call_function(getattr, (self._float_input(), "dtype"))
        if isinstance(a, torch.device):
            return self.graph.call_function(getattr, (self.first(), "device"))
        if type(a) is int and a != b:
            made = self.sizes.expression(self.graph, self.inputs, a, b)
            if made is None:
                raise ValueError(f"the number {a} becomes {b} with other sizes, which no input explains")
            return made
        if type(a) is float and a != b:
            return self._limit(a, b)
        if type(a) is float and a in self.sizes.floats:
            return self.graph.get_attr(self.sizes.floats[a])
        if type(a) is int and shaped and a in self.sizes.ints:
            return self.graph.get_attr(self.sizes.ints[a])
        if type(a) is float and a == b and a in _LIMITS:
            # The stock form computes in float32, whatever its inputs are.
            return self._limit_of(_LIMITS[a])
        if (type(a) is float and a not in (0.0, 1.0)) or (type(a) is int and a > _SMALL):
            self.sizes.fixed.update(self.sizes.names.get(a, ()))
        return a

    def _limit_of(self, name: str) -> fx.Node:
        """The limit of the dtype that the module is given; a larger one would be infinite in it."""
        dtype = self.graph.call_function(getattr, (self._float_input(), "dtype"))
        return self.graph.call_function(getattr, (self.graph.call_function(torch.finfo, (dtype,)), name))

    def _limit(self, a: float, b: float) -> Any:
        for name in ("min", "max", "eps", "tiny"):
            if (getattr(torch.finfo(torch.float32), name), getattr(torch.finfo(torch.float64), name)) == (a, b):
                return self._limit_of(name)
        raise ValueError(f"the number {a} becomes {b} with other sizes, which no input explains")

    def _float_input(self) -> fx.Node:
        return next((n for n in self.inputs.values() if str(n.target) in self.sizes.floating), self.first())

    def first(self) -> fx.Node:
        """The first input."""
        return next(iter(self.inputs.values()))


def _takes_numbers(node: fx.Node) -> bool:
    """Whether integers among the arguments are sizes, and not dimensions."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name in ("view", "reshape", "getitem", "expand", "split", "narrow", "unflatten", "repeat", "zeros", "ones")
