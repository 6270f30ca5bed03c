"""What a node of a traced graph is, by one name for functions, methods and operators alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, fx

STICK = 64
"""Elements of a stick at 16 bits (D1.2)."""

_SAME = {
    "truediv": "div", "true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg",
    "concat": "cat", "concatenate": "cat", "__getitem__": "getitem", "absolute": "abs", "square": "square",
    "swapaxes": "transpose", "float": "to", "half": "to", "type_as": "to", "view_as": "reshape",
    "reshape_as": "reshape", "view": "reshape", "bmm": "matmul", "__matmul__": "matmul",
}  # fmt: skip

POINTWISE = frozenset({
    "add", "sub", "mul", "div", "neg", "abs", "exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "reciprocal",
    "tanh", "sigmoid", "relu", "silu", "gelu", "softplus", "erf", "erfc", "pow", "square", "clamp", "clamp_min",
    "clamp_max", "minimum", "maximum", "sin", "cos", "tan", "where", "mish", "hardswish", "hardsigmoid", "logsigmoid",
    "softsign", "elu", "leaky_relu", "relu6", "tanhshrink",
})  # fmt: skip
"""Kinds that compute each element from the elements at its place."""


def kind(node: fx.Node) -> str:
    """The name of what a node does; empty for inputs, attributes, children and the output."""
    if node.op == "call_method":
        name = str(node.target)
    elif node.op == "call_function":
        name = getattr(node.target, "__name__", "")
    else:
        return ""
    return _SAME.get(name, name)


def value(node: fx.Node) -> Any:
    """What the node gave in the first call, in float64."""
    return node.meta.get("value")


def other(node: fx.Node) -> Any:
    """What it gave in the second call, which had other sizes."""
    return node.meta.get("other")


def shape(node: Any) -> tuple[int, ...]:
    """The shape of what the node gave in the first call; empty when that is no tensor."""
    found = value(node) if isinstance(node, fx.Node) else None
    return tuple(found.shape) if isinstance(found, Tensor) else ()


def is_float(node: Any) -> bool:
    """Whether the node gave a floating tensor."""
    return isinstance(node, fx.Node) and isinstance(value(node), Tensor) and value(node).is_floating_point()


def argument(node: fx.Node, index: int, name: str, default: Any = None) -> Any:
    """An argument by position or name."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def number(item: Any) -> float | int | None:
    """The value of a literal, or of a node that gave a number (an attribute)."""
    if isinstance(item, fx.Node):
        item = value(item)
    return item if type(item) in (int, float) else None


def last_dim(item: Any, rank: int) -> bool:
    """Whether a dimension argument names the last dimension."""
    return item in (-1, rank - 1)


def operands(node: fx.Node) -> Iterator[fx.Node]:
    """Inputs that are tensors."""
    for item in node.all_input_nodes:
        if isinstance(value(item), Tensor):
            yield item


def method_or_function(graph: fx.Graph, name: str, *args: Any, **kwargs: Any) -> fx.Node:
    """A call of `torch.NAME`."""
    return graph.call_function(getattr(torch, name), args, kwargs)


def replace_with(graph: fx.Graph, node: fx.Node, new: fx.Node) -> None:
    """Put `new` where `node` is used, and remove what nothing uses any more."""
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output"))


def cone(node: fx.Node, kinds: frozenset[str]) -> tuple[set[fx.Node], set[fx.Node]]:
    """The nodes above and including `node` that are of these kinds, and the tensors that they start from."""
    inside: set[fx.Node] = set()
    sources: set[fx.Node] = set()
    pending = [node]
    while pending:
        current = pending.pop()
        if current in inside or current in sources:
            continue
        if kind(current) in kinds and isinstance(value(current), Tensor):
            inside.add(current)
            pending.extend(current.all_input_nodes)
        elif isinstance(value(current), (Tensor, tuple, list)):
            sources.add(current)
    return inside, sources
