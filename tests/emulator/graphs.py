"""Graphs that Hypothesis generates: a list of steps that torch runs and that error bars follow.

Shapes are odd on purpose: 1, 33, 65, 100 beside whole sticks.  A step is (name, argument positions, parameters); values
are numbered in the order in which they appear, inputs first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from tests.emulator import tracked
from tests.emulator.tracked import Tracked

EXTENTS = (1, 2, 3, 5, 7, 33, 64, 65, 100, 128, 192)
MOST = 24_576
FLOATS = ("float16", "bfloat16", "float32")

UNARY: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tracked], Tracked]]] = {
    "neg": (torch.neg, lambda x: Tracked(-x.value, x.error, x.dtype)),
    "abs": (torch.abs, lambda x: Tracked(x.value.abs(), x.error, x.dtype)),
    "relu": (torch.relu, lambda x: Tracked(x.value.relu(), x.error, x.dtype)),
    "sigmoid": (torch.sigmoid, tracked.lipschitz(torch.sigmoid, 0.25)),
    "exp": (lambda x: torch.exp(-x.abs()), tracked.exp_of_negative),
}
NARROW_ONLY: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tracked], Tracked]]] = {
    "tanh": (torch.tanh, tracked.lipschitz(torch.tanh, 1.0)),
}
BINARY: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tracked, Tracked], Tracked]]] = {
    "add": (torch.add, tracked.add),
    "sub": (torch.sub, tracked.sub),
    "mul": (torch.mul, tracked.mul),
    "maximum": (torch.maximum, tracked.maximum),
}
REDUCTIONS: dict[str, tuple[Callable[..., Tensor], Callable[..., Tracked]]] = {
    "sum": (torch.sum, tracked.total),
    "mean": (torch.mean, tracked.mean),
    "amax": (torch.amax, tracked.amax),
}


@dataclass(slots=True)
class Graph:
    """Inputs and steps; ``shapes`` and ``dtypes`` of all values so far."""

    inputs: list[Tensor] = field(default_factory=list)
    steps: list[tuple[str, tuple[int, ...], tuple[Any, ...]]] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)

    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        """The graph as a function of its inputs; returns every value that no step uses."""
        steps, results = tuple(self.steps), self.results()

        def run(*inputs: Tensor) -> tuple[Tensor, ...]:
            values = list(inputs)
            for name, arguments, parameters in steps:
                values.append(step(name, [values[a] for a in arguments], parameters))
            return tuple(values[r] for r in results)

        return run

    def results(self) -> list[int]:
        """Positions of the values that no step uses, but not of inputs."""
        used = {a for _, arguments, _ in self.steps for a in arguments}
        return [i for i in range(len(self.inputs), len(self.shapes)) if i not in used]

    def bars(self) -> list[Tracked]:
        """The results with their error bars."""
        values = [tracked.exactly(x) for x in self.inputs]
        for name, arguments, parameters in self.steps:
            values.append(bar(name, [values[a] for a in arguments], parameters))
        return [values[r] for r in self.results()]


def step(name: str, args: Sequence[Tensor], parameters: tuple[Any, ...]) -> Tensor:
    """One step in torch."""
    x = args[0]
    if name in UNARY:
        return UNARY[name][0](x)
    if name in NARROW_ONLY:
        return NARROW_ONLY[name][0](x)
    if name in BINARY:
        return BINARY[name][0](x, args[1])
    if name in REDUCTIONS:
        return REDUCTIONS[name][0](x, list(parameters[0]), keepdim=parameters[1])
    if name == "greater":
        return x > args[1]
    if name == "and":
        return x & args[1]
    if name == "where":
        return torch.where(x, args[1], args[2])
    if name == "softmax":
        return torch.softmax(x, -1)
    if name == "matmul":
        return torch.matmul(x, args[1])
    if name == "to":
        return x.to(getattr(torch, parameters[0]))
    if name == "index":
        return x[args[1]]
    return move(name, args, parameters)


def move(name: str, args: Sequence[Tensor], parameters: tuple[Any, ...]) -> Tensor:
    """Steps that only move elements, for values and for error bars alike."""
    x = args[0]
    if name == "transpose":
        return x.transpose(*parameters)
    if name == "reshape":
        return x.reshape(parameters)
    if name == "expand":
        return x.expand(parameters)
    if name == "narrow":
        return x.narrow(*parameters)
    if name == "cat":
        return torch.cat(list(args), parameters[0])
    assert name == "contiguous"
    return x.clone(memory_format=torch.contiguous_format)


def bar(name: str, args: Sequence[Tracked], parameters: tuple[Any, ...]) -> Tracked:
    """One step on values with error bars."""
    x = args[0]
    for table in (UNARY, NARROW_ONLY):
        if name in table:
            return table[name][1](x)
    if name in BINARY:
        return BINARY[name][1](x, args[1])
    if name in REDUCTIONS:
        return REDUCTIONS[name][1](x, list(parameters[0]), parameters[1])
    special: dict[str, Callable[..., Tracked]] = {
        "greater": tracked.greater,
        "and": tracked.both,
        "where": tracked.select,
        "softmax": tracked.softmax,
        "matmul": tracked.matmul,
    }
    if name in special:
        return special[name](*args)
    if name == "to":
        return tracked.cast(x, parameters[0])
    if name == "index":
        index = args[1].value.long()
        return x.moved(lambda t: t[index])
    value, error = (move(name, [getattr(a, part) for a in args], parameters) for part in ("value", "error"))
    return Tracked(value, error, x.dtype)


class Builder:
    """Draws a graph step by step."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.graph = Graph()
        self.newest = 0

    def input(self, shape: tuple[int, ...], dtype: str, high: int = 0) -> int:
        """A new input with values that every device format holds: at most 7 fraction bits, magnitude at most 2."""
        generator = torch.Generator().manual_seed(self.draw(st.integers(0, 2**16)))
        torch_dtype = getattr(torch, dtype)
        if dtype == "bool":
            value = torch.rand(shape, generator=generator) < 0.5
        elif dtype == "int32":
            value = torch.randint(0 if high else -50, high or 51, shape, generator=generator, dtype=torch.int32)
        else:
            value = (torch.randint(-256, 257, shape, generator=generator) / 128).to(torch.bfloat16).to(torch_dtype)
        return self._insert(value, shape, dtype)

    def _insert(self, value: Tensor, shape: tuple[int, ...], dtype: str) -> int:
        """Inputs are numbered before all steps: later positions move up by one."""
        graph, place = self.graph, len(self.graph.inputs)
        graph.inputs.append(value)
        graph.shapes.insert(place, shape)
        graph.dtypes.insert(place, dtype)
        graph.steps = [(n, tuple(a + (a >= place) for a in args), p) for n, args, p in graph.steps]
        if len(graph.shapes) > 1:
            self.newest += self.newest >= place
        return place

    def emit(self, name: str, arguments: Sequence[int], shape: Sequence[int], dtype: str, *parameters: Any) -> None:
        """A step with a result of this shape and dtype."""
        self.graph.steps.append((name, tuple(arguments), parameters))
        self.graph.shapes.append(tuple(shape))
        self.graph.dtypes.append(dtype)
        self.newest = len(self.graph.shapes) - 1

    def last(self) -> tuple[int, tuple[int, ...], str]:
        """Position, shape and dtype of the newest value."""
        return self.newest, self.graph.shapes[self.newest], self.graph.dtypes[self.newest]

    def partner(self) -> int:
        """A value to combine with the newest one: it, an earlier one of its shape, or a new one that broadcasts."""
        _, shape, dtype = self.last()
        same = [i for i, s in enumerate(self.graph.shapes) if s == shape and self.graph.dtypes[i] == dtype]
        if self.draw(st.booleans()):
            return self.draw(st.sampled_from(same))
        narrow = tuple(1 if n > 1 and self.draw(st.integers(0, 3)) == 0 else n for n in shape)
        if narrow and self.draw(st.booleans()):
            narrow = narrow[self.draw(st.integers(0, len(narrow) - 1)) :]
        return self.input(narrow, dtype)

    def add_step(self) -> None:
        """One more step on the newest value."""
        _, shape, dtype = self.last()
        choices: list[Callable[[], None]] = [self.binary, self.binary, self.movement]
        if dtype in FLOATS:
            choices = [self.unary, self.binary, self.binary, self.compare, self.movement, self.convert]
            if shape:
                choices += [self.reduction, self.reduction, self.softmax]
            if dtype != "float32" and len(shape) >= 1 and shape[-1] % 64 == 0:
                choices += [self.matmul] * 3
            if dtype != "float32" and len(shape) == 2 and shape[0] > 1:
                choices.append(self.index)
        if dtype == "bool":
            choices = [self.choose, self.both, self.movement]
        self.draw(st.sampled_from(choices))()

    def unary(self) -> None:
        place, shape, dtype = self.last()
        names = [*UNARY, *(NARROW_ONLY if dtype != "float32" else ())]
        self.emit(self.draw(st.sampled_from(names)), [place], shape, dtype)

    def binary(self) -> None:
        other = self.partner()
        place, shape, dtype = self.last()
        names = ("add", "mul") if dtype == "int32" else tuple(BINARY)
        name = self.draw(st.sampled_from(names))
        if name == "sub" and other == place:
            name = "add"
        self.emit(name, [place, other], shape, dtype)

    def compare(self) -> None:
        other = self.partner()
        place, shape, _ = self.last()
        self.emit("greater", [place, other], shape, "bool")

    def both(self) -> None:
        other = self.partner()
        place, shape, dtype = self.last()
        self.emit("and", [place, other], shape, dtype)

    def choose(self) -> None:
        _, shape, _ = self.last()
        floats = [i for i, s in enumerate(self.graph.shapes) if s == shape and self.graph.dtypes[i] in FLOATS]
        kind = self.graph.dtypes[self.draw(st.sampled_from(floats))] if floats else "float16"
        other = self.input(shape, kind)
        place, shape, _ = self.last()
        floats = [i for i, s in enumerate(self.graph.shapes) if s == shape and self.graph.dtypes[i] == kind]
        self.emit("where", [place, self.draw(st.sampled_from(floats)), other], shape, kind)

    def reduction(self) -> None:
        place, shape, dtype = self.last()
        dims = sorted(self.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1, max_size=2)))
        keep = self.draw(st.booleans())
        left = [1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims]
        self.emit(self.draw(st.sampled_from(tuple(REDUCTIONS))), [place], left, dtype, tuple(dims), keep)

    def softmax(self) -> None:
        place, shape, dtype = self.last()
        self.emit("softmax", [place], shape, dtype)

    def matmul(self) -> None:
        _, shape, dtype = self.last()
        columns = self.draw(st.sampled_from((2, 33, 64, 100, 128)))
        batch = shape[:-2] if self.draw(st.booleans()) else ()
        other = self.input((*batch, shape[-1], columns), dtype)
        place, shape, dtype = self.last()
        self.emit("matmul", [place, other], (*shape[:-1], columns), dtype)

    def index(self) -> None:
        _, shape, dtype = self.last()
        count = self.draw(st.sampled_from((1, 5, 33, 64)))
        other = self.input((count,), "int32", high=shape[0])
        place, shape, dtype = self.last()
        self.emit("index", [place, other], (count, shape[1]), dtype)

    def convert(self) -> None:
        place, shape, dtype = self.last()
        self.emit("to", [place], shape, *[self.draw(st.sampled_from([f for f in FLOATS if f != dtype]))] * 2)

    def movement(self) -> None:
        place, shape, dtype = self.last()
        kind = self.draw(st.sampled_from(("transpose", "reshape", "expand", "narrow", "cat", "contiguous")))
        if kind == "transpose" and len(shape) >= 2:
            first, second = self.draw(st.permutations(range(len(shape))))[:2]
            swapped = list(shape)
            swapped[first], swapped[second] = shape[second], shape[first]
            self.emit("transpose", [place], swapped, dtype, first, second)
        elif kind == "reshape":
            wanted = self.draw(st.sampled_from(_reshapes(shape)))
            self.emit("reshape", [place], wanted, dtype, *wanted)
        elif kind == "expand" and math.prod(shape) * 3 <= MOST and len(shape) < 4:
            self.emit("expand", [place], (3, *shape), dtype, 3, *shape)
        elif kind == "narrow" and shape:
            dim = self.draw(st.integers(0, len(shape) - 1))
            start = self.draw(st.sampled_from([s for s in (0, 1, 2, 64, 128) if s < shape[dim]]))
            length = self.draw(st.sampled_from([n for n in (1, 2, 64, shape[dim] - start) if n <= shape[dim] - start]))
            left = (*shape[:dim], length, *shape[dim + 1 :])
            self.emit("narrow", [place], left, dtype, dim, start, length)
        elif kind == "cat" and shape and math.prod(shape) * 2 <= MOST:
            dim = self.draw(st.integers(0, len(shape) - 1))
            extent = self.draw(st.sampled_from((1, 3, 64)))
            other = self.input((*shape[:dim], extent, *shape[dim + 1 :]), dtype)
            place, shape, dtype = self.last()
            joined = (*shape[:dim], shape[dim] + extent, *shape[dim + 1 :])
            self.emit("cat", [place, other], joined, dtype, dim)
        else:
            self.emit("contiguous", [place], shape, dtype)


def _reshapes(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Shapes of as many elements: one dim split, or two merged."""
    found: list[tuple[int, ...]] = [(math.prod(shape),)]
    for dim, extent in enumerate(shape):
        for inner in (2, 3, 32, 64):
            if extent % inner == 0 and len(shape) < 4:
                found.append((*shape[:dim], extent // inner, inner, *shape[dim + 1 :]))
        if dim + 1 < len(shape):
            found.append((*shape[:dim], extent * shape[dim + 1], *shape[dim + 2 :]))
    return found


@st.composite
def graphs(draw: st.DrawFn, dtypes: Sequence[str] = ("float16", "bfloat16", "float32", "int32", "bool")) -> Graph:
    """A graph of one to six steps."""
    builder = Builder(draw)
    shape = tuple(draw(st.lists(st.sampled_from(EXTENTS), min_size=0, max_size=3)))
    while math.prod(shape) > MOST // 4:
        shape = shape[1:]
    builder.input(shape, draw(st.sampled_from(dtypes)))
    for _ in range(draw(st.integers(1, 6))):
        builder.add_step()
    return builder.graph
