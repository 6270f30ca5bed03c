"""The CPU proof of an adapter for a module that no library has: the module itself, written out from its trace."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters.agents.rewrite.trace import Traced, bind
from hf_adapters.agents.screening.allowed import CHAINS

_ROWS = 3
"""Rows of the example's inputs at most."""


def own_example(traced: Traced, forward: str, *, widened: bool = False) -> tuple[str, str]:
    """The text of a class that computes as the stock module, and the functions `_build`, `_inputs` and `_examples`.

    Args:
        traced: the stock module.
        forward: the text of its forward, indented as a method.
        widened: see `Example.widened`.

    Raises:
        ValueError: it holds something that no plain text stands for.
    """
    module = traced.module
    name = type(module).__name__
    lines = [*_children(traced), *_tensors(module), *_attributes(traced)]
    body = "\n".join(f"        {line}" for line in ["super().__init__()", *lines])
    stock = (
        f'class {name}(nn.Module):\n    """The stock form."""\n\n    def __init__(self) -> None:\n{body}\n\n{forward}'
    )
    options = ", widened=True" if widened else ""
    given = ", ".join(f'"{key}": {text}' for key, text in _inputs(traced).items())
    return (
        stock,
        f"""def _build() -> nn.Module:
    return {name}().double().eval()


def _inputs() -> dict[str, Any]:
    return {{{given}}}


def _examples() -> list[Example]:
    return [Example(name="stock_form", build=_build, inputs=_inputs{options})]""",
    )


def _children(traced: Traced) -> list[str]:
    called = {str(node.target) for node in traced.graph.nodes if node.op == "call_module"}
    read = {str(node.target).rpartition(".")[0] for node in traced.graph.nodes if node.op == "get_attr"}
    found = []
    for path in sorted((called | read) - {""}):
        child = traced.module.get_submodule(path)
        name = type(child).__name__
        if "." in path or f"torch.nn.{name}" not in CHAINS or type(child) is not getattr(nn, name, None):
            raise ValueError(f"the module {path} is none of torch.nn, so no example of it can be written")
        found.append(f"self.{path} = nn.{name}({child.extra_repr()})")
    return found


def _tensors(module: nn.Module) -> list[str]:
    """Parameters and buffers of the module itself, with values of their own."""
    found = []
    for name, parameter in module.named_parameters(recurse=False):
        found.append(f"self.{name} = nn.Parameter({_values(parameter)})")
    for name, buffer in module.named_buffers(recurse=False):
        if not buffer.is_floating_point():
            raise ValueError(f"the buffer {name} is {buffer.dtype}")
        found.append(f'self.register_buffer("{name}", {_values(buffer)})')
    return found


def _attributes(traced: Traced) -> list[str]:
    read = {str(node.target) for node in traced.graph.nodes if node.op == "get_attr"}
    held = {name: value for name, value in vars(traced.module).items() if type(value) in (int, float, bool, str)}
    wanted = {**{n: v for n, v in held.items() if n in {*read, *traced.fixed}}, **_flags(held)}
    return [f"self.{name} = {value!r}" for name, value in wanted.items()]


def _flags(held: dict[str, Any]) -> dict[str, Any]:
    """What an adapter's sites may ask for."""
    return {name: v for name, v in held.items() if type(v) is not float and not name.startswith(("_", "training"))}


def _inputs(traced: Traced) -> dict[str, str]:
    if any(index is not None for _, index in traced.inputs.values()):
        raise ValueError("it takes tuples of tensors")
    bound = bind(traced.module, traced.calls[0])
    found = {name: _input(bound[name]) for name, _ in traced.inputs.values()}
    return found | {name: repr(value) for name, value in traced.given.items() if type(value) in (bool, int, float, str)}


def _input(tensor: Tensor) -> str:
    sizes = tuple(min(size, _ROWS) if dim == 0 else size for dim, size in enumerate(tensor.shape))
    if tensor.is_floating_point():
        return _values(tensor[: sizes[0]])
    count = f"torch.arange({tensor[: sizes[0]].numel()}).reshape{sizes}"
    if tensor.dtype == torch.bool:
        return f"{count} % 5 < 3"
    return f"{count} % {int(tensor.max()) + 1}"


def _values(tensor: Tensor) -> str:
    if tensor.dim() == 0:
        return f"torch.tensor({float(tensor)!r})"
    sizes = tuple(tensor.shape)
    line = f"torch.linspace(-2.0, 3.0, {tensor.numel()}, dtype=torch.float64)"
    return line if len(sizes) == 1 else f"{line}.reshape({', '.join(map(str, sizes))})"


__all__ = ["own_example"]
