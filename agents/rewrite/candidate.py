"""A form of a module on the way to one that lowers: a graph, the tables it multiplies by, and what was done so far."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from hf_adapters.agents.rewrite.trace import Traced, cast
from hf_adapters.validation.float64 import in_float64

Equivalence = Literal["exact", "reassociated", "padded"]
_ORDER: tuple[Equivalence, ...] = ("exact", "reassociated", "padded")
TOLERANCE = 1e-9
"""Largest relative error in float64 between a candidate and the stock form."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A constant tensor made from a parameter (for its device) by a small graph.

    Attributes:
        name: attribute of the module that holds it.
        graph: its placeholders are called by `sources`; the result is the table.
        sources: dotted names of parameters or buffers below the module.
        about: what it is, one sentence.
    """

    name: str
    graph: fx.Graph
    sources: tuple[str, ...]
    about: str

    def value(self, module: nn.Module) -> Tensor:
        """The table for a module, in float64."""
        given = [_tensor(module, name).detach().double() for name in self.sources]
        made: Tensor = fx.Interpreter(fx.GraphModule(nn.Module(), self.graph)).run(*given)
        return made.double()


@dataclass(kw_only=True)
class Candidate:
    """One form of the traced module.

    Attributes:
        traced: what it started as.
        graph: its own; placeholders as in the trace.
        tables: by attribute name.
        steps: the equalities applied, in words.
        equivalence: the weakest of the steps.
        relies: dotted attributes of the module whose value the form depends on, beside those that the trace found.
        eager: the module's own operations run one by one, and only its children are compiled.
    """

    traced: Traced
    graph: fx.Graph
    tables: dict[str, Table] = field(default_factory=dict)
    steps: tuple[str, ...] = ()
    equivalence: Equivalence = "exact"
    relies: tuple[str, ...] = ()
    eager: bool = False

    @property
    def untouched(self) -> bool:
        """Whether the module still computes what it did in the way it did."""
        return not self.steps

    @classmethod
    def stock(cls, traced: Traced) -> Candidate:
        """The form that the module has."""
        made = cls(traced=traced, graph=traced.graph)
        made.annotate()
        return made

    def copied(self) -> tuple[Candidate, dict[fx.Node, fx.Node]]:
        """A copy to be changed, and where each node went."""
        graph = fx.Graph()
        places: dict[fx.Node, fx.Node] = {}
        graph.output(graph.graph_copy(self.graph, places))
        for old, new in places.items():
            new.meta = dict(old.meta)
        return replace(self, graph=graph, tables=dict(self.tables)), places

    def with_step(self, step: str, equivalence: Equivalence) -> Candidate:
        """The same after another step."""
        weaker = max(self.equivalence, equivalence, key=_ORDER.index)
        return replace(self, steps=(*self.steps, step), equivalence=weaker)

    def key(self) -> str:
        """Equal for candidates that do the same."""
        tables = " ".join(f"{name}={table.graph}" for name, table in sorted(self.tables.items()))
        return f"{text_of(self.graph)}{tables}{self.eager}"

    def root(self, dtype: torch.dtype) -> fx.GraphModule:
        """A module with this form as its forward."""
        module = cast(copy.deepcopy(self.traced.module), dtype)
        for name, table in self.tables.items():
            setattr(module, name, table.value(self.traced.module).to(dtype))
        return fx.GraphModule(module, self.graph)

    def annotate(self) -> None:
        """Set `meta["value"]` and `meta["other"]` of each node: its float64 value in the first and the second call."""
        for call, key in enumerate(("value", "other")):
            self.evaluate(call, key)

    def evaluate(self, call: int, key: str | None = None) -> Any:
        """The result in float64 for one call; values are kept under `key` of the nodes' meta."""
        arguments = [as_double(a) for a in self.traced.arguments(call)]
        root = self.root(torch.float64)
        with torch.no_grad(), in_float64():
            return _Keeping(root, self.graph, key).run(*arguments)

    def equals(self, other: Candidate) -> bool:
        """Whether both give the same in float64, on both calls and on the calls with other activations."""
        return agree(self.results(), other.results())

    def results(self) -> list[list[Tensor]]:
        """What it gives in float64 on both calls, and on the calls with other activations."""
        root = self.root(torch.float64)
        found = []
        for call in range(2):
            for scale in (1.0, -3.0):
                arguments = [as_double(a) for a in self.traced.arguments(call)]
                first = next((i for i, a in enumerate(arguments) if a.is_floating_point()), None)
                if first is not None:
                    arguments[first] = arguments[first] * scale
                with torch.no_grad(), in_float64():
                    found.append(list(tensors(fx.Interpreter(root).run(*arguments))))
        return found


def agree(left: list[list[Tensor]], right: list[list[Tensor]]) -> bool:
    """Whether the results of two candidates are the same."""
    return all(_close(a, b) for a, b in zip(left, right, strict=True))


def text_of(graph: fx.Graph) -> str:
    """Equal for graphs that do the same with the same names of inputs and attributes."""
    places = {node: f"%{index}" for index, node in enumerate(graph.nodes)}
    return "\n".join(f"{n.op} {n.target} {fx.map_arg((n.args, n.kwargs), places.__getitem__)!r}" for n in graph.nodes)


class _Keeping(fx.Interpreter):
    def __init__(self, module: fx.GraphModule, graph: fx.Graph, key: str | None) -> None:
        super().__init__(module)
        self.own = {node.name: node for node in graph.nodes}
        self.key = key

    def run_node(self, n: fx.Node) -> Any:
        """See `Interpreter`."""
        result = super().run_node(n)
        if self.key is not None and n.name in self.own:
            self.own[n.name].meta[self.key] = result
        return result


def as_double(value: Any) -> Any:
    """A floating tensor in float64; anything else as it is."""
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in a result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensors(item)


def _close(left: list[Tensor], right: list[Tensor]) -> bool:
    if len(left) != len(right):
        return False
    for a, b in zip(left, right, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return False
        if not a.is_floating_point():
            if not torch.equal(a, b):
                return False
            continue
        scale = b.abs().amax().clamp(min=1e-300) if b.numel() else 1.0
        if b.numel() and not bool(((a - b).abs().amax() / scale) <= TOLERANCE):
            return False
    return True


def _tensor(module: nn.Module, path: str) -> Tensor:
    owner, _, name = path.rpartition(".")
    found: Tensor = getattr(module.get_submodule(owner), name)
    return found


Rule = Callable[[Candidate, fx.Node], str | None]
"""Changes the candidate's graph at a node and says what it did; None when it does not fit there, and then the
candidate, which is a copy, is thrown away."""
