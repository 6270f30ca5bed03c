"""Graphs as Python text: one readable statement for each value that is used twice or is too long to stand in a line."""

from __future__ import annotations

import builtins
import itertools
import keyword
import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

_LINE = 96
_INFIX: dict[Any, tuple[str, int]] = {
    operator.or_: ("|", 1), operator.and_: ("&", 2), operator.eq: ("==", 0), operator.ne: ("!=", 0),
    operator.lt: ("<", 0), operator.le: ("<=", 0), operator.gt: (">", 0), operator.ge: (">=", 0),
    operator.add: ("+", 3), operator.sub: ("-", 3), operator.mul: ("*", 4), operator.truediv: ("/", 4),
    operator.floordiv: ("//", 4), torch.matmul: ("@", 4),
}  # fmt: skip
_UNARY: dict[Any, str] = {operator.neg: "-", operator.invert: "~"}
_ATOM = 9
_NAMES = {
    "matmul": "product", "add": "total", "mul": "scaled", "truediv": "quotient", "sub": "difference",
    "reshape": "shaped", "transpose": "turned", "softmax": "probabilities", "getitem": "part", "cat": "joined",
    "mean": "average", "pow": "power", "to": "cast", "scaled_dot_product_attention": "attended", "chunk": "parts",
    "split": "parts", "unbind": "parts", "linear": "projected", "sum": "total", "neg": "negated",
    "reciprocal": "inverse", "flatten": "flat", "full_like": "filled", "getattr": "held", "eq": "equal",
}  # fmt: skip


@dataclass
class Writer:
    """Writes the statements of one function.

    Attributes:
        names: placeholder -> the name that the function's text uses.
        taken: names that must not be bound again.
        lines: the statements, without indentation.
        functional: whether `torch.nn.functional` was used.
    """

    names: dict[fx.Node, str]
    taken: set[str]
    lines: list[str] = field(default_factory=list)
    functional: bool = False
    _texts: dict[fx.Node, tuple[str, int]] = field(default_factory=dict)

    def body(self, graph: fx.Graph) -> str:
        """Write all nodes; the text of the result."""
        for node in graph.nodes:
            if node.op == "placeholder":
                self._texts[node] = (self.names[node], _ATOM)
            elif node.op == "output":
                return self.text(node.args[0])
            elif node.users:
                self._statement(node)
        raise ValueError("the graph has no output")

    def _statement(self, node: fx.Node) -> None:
        text, binds = self._expression(node)
        once = _uses(node) == 1 and _is_near(node)
        if node.op == "get_attr" or _is_size(node) or (once and len(text) <= _LINE // 2):
            self._texts[node] = (text, binds)
            return
        name = self._fresh(node)
        self.lines.append(f"{name} = {text}")
        self._texts[node] = (name, _ATOM)

    def _fresh(self, node: fx.Node) -> str:
        if node.op == "call_module":
            stem = str(node.target).rpartition(".")[2]
        else:
            own = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "value")
            stem = _NAMES.get(own, own).strip("_")
        stem = stem if stem.isidentifier() and not stem.isdigit() else "value"
        name, count = stem, 2
        while name in self.taken or hasattr(builtins, name) or keyword.iskeyword(name) or name in ("torch", "math"):
            name, count = f"{stem}_{count}", count + 1
        self.taken.add(name)
        return name

    def text(self, item: Any, strength: int = 0) -> str:
        """An argument as text, in parentheses when an operator of this strength would take it apart."""
        if isinstance(item, fx.Node):
            text, own = self._texts[item]
            return text if own > strength or own == _ATOM else f"({text})"
        if isinstance(item, tuple):
            inside = ", ".join(self.text(part) for part in item)
            return f"({inside},)" if len(item) == 1 else f"({inside})"
        if isinstance(item, list):
            return "[" + ", ".join(self.text(part) for part in item) + "]"
        if isinstance(item, float):
            if item in (float("inf"), float("-inf")):
                return "torch.inf" if item > 0 else "-torch.inf"
            return repr(item)
        return "..." if item is Ellipsis else repr(item)

    def _expression(self, node: fx.Node) -> tuple[str, int]:
        if node.op == "get_attr":
            return f"self.{_path(str(node.target))}", _ATOM
        if node.op == "call_module":
            return f"self.{_path(str(node.target))}({self._arguments(node.args, node.kwargs)})", _ATOM
        if node.op == "call_method":
            return f"{self.text(node.args[0], 8)}.{node.target}({self._arguments(node.args[1:], node.kwargs)})", _ATOM
        return self._function(node)

    def _function(self, node: fx.Node) -> tuple[str, int]:
        target: Any = node.target
        if target in _INFIX and len(node.args) == 2 and not node.kwargs:
            sign, strength = _INFIX[target]
            return f"{self.text(node.args[0], strength - 1)} {sign} {self.text(node.args[1], strength)}", strength
        if target in _UNARY:
            return f"{_UNARY[target]}{self.text(node.args[0], 5)}", 5
        if target is getattr:
            return f"{self.text(node.args[0], 8)}.{node.args[1]}", _ATOM
        if target is operator.getitem:
            return f"{self.text(node.args[0], 8)}[{self._index(node.args[1])}]", _ATOM
        name = getattr(target, "__name__", "")
        owner = "torch" if getattr(torch, name, None) is target else "F"
        if owner == "F" and getattr(nn.functional, name, None) is not target:
            raise ValueError(f"no name for {target}")
        self.functional |= owner == "F"
        return f"{owner}.{name}({self._arguments(node.args, node.kwargs)})", _ATOM

    def _index(self, index: Any) -> str:
        if isinstance(index, tuple):
            return ", ".join(self._index(part) for part in index) + ("," if len(index) == 1 else "")
        if isinstance(index, slice):
            start, stop = ("" if part is None else self.text(part) for part in (index.start, index.stop))
            return f"{start}:{stop}" + ("" if index.step is None else f":{self.text(index.step)}")
        return self.text(index)

    def _arguments(self, args: Any, kwargs: Any) -> str:
        return ", ".join([*(self.text(a) for a in args), *(f"{k}={self.text(v)}" for k, v in kwargs.items())])


def broken(line: str, width: int) -> list[str]:
    """A statement in lines of at most `width` characters, where its longest brackets can be taken apart."""
    if len(line) <= width:
        return [line]
    margin = line[: len(line) - len(line.lstrip())]
    if margin:
        return [margin + text for text in broken(line.lstrip(), width - len(margin))]
    start, end = max(_brackets(line), key=lambda pair: pair[1] - pair[0], default=(0, 0))
    parts = _parts(line[start + 1 : end])
    if end - start < 2 or (len(parts) == 1 and len(parts[0]) + len(line[:start]) < 8):
        return [line]
    inside = [text for part in parts for text in broken(part + ("," if len(parts) > 1 else ""), width - 4)]
    return [line[: start + 1], *(f"    {text}" for text in inside), line[end:]]


def _brackets(line: str) -> list[tuple[int, int]]:
    """Outermost pairs of brackets."""
    found, open_at = [], []
    for index, character in enumerate(line):
        if character in "([{":
            open_at.append(index)
        elif character in ")]}" and open_at:
            start = open_at.pop()
            if not open_at:
                found.append((start, index))
    return found


def _parts(text: str) -> list[str]:
    """Between the commas outside of all brackets."""
    inside = _brackets(text)
    commas = [i for i, c in enumerate(text) if c == "," and not any(a < i < b for a, b in inside)]
    edges = [-1, *commas, len(text)]
    return [part for a, b in itertools.pairwise(edges) if (part := text[a + 1 : b].strip())]


def _path(path: str) -> str:
    """`layers.0.dense` as `layers[0].dense`."""
    first, *rest = path.split(".")
    return first + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


def _is_size(node: fx.Node) -> bool:
    """Sizes, dtypes and devices are short, and read where they are used."""
    if node.target is getattr:
        return node.args[1] in ("shape", "dtype", "device", "min", "max", "eps", "tiny")
    if node.target in (operator.getitem, operator.mul, operator.sub, torch.finfo):
        return all(_is_size(n) for n in node.all_input_nodes) if node.target is not torch.finfo else True
    return False


def _uses(node: fx.Node) -> int:
    """How often the value is named: `x * x` names it twice."""
    named: list[fx.Node] = []
    for user in node.users:
        fx.map_arg((user.args, user.kwargs), lambda n: named.append(n) or n)  # type: ignore[func-returns-value]
    return sum(n is node for n in named)


def _is_near(node: fx.Node) -> bool:
    """Whether nothing but parts of the same expression stands between a value and its use."""
    return all(user.op != "output" or not isinstance(user.args[0], (tuple, list, dict)) for user in node.users)
