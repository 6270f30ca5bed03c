"""What a module holds beside its tensors, and which of the modules below it can be opened."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch import nn

from hf_adapters._classes import split_class


def attributes_of(module: nn.Module, opened: Collection[str]) -> dict[str, Any]:
    """Plain attributes by dotted name: the module's, and those of what was opened below it."""
    found = dict(vars(module))
    for path in sorted(opened):
        found |= {f"{path}.{name}": value for name, value in vars(module.get_submodule(path)).items()}
    return {name: value for name, value in found.items() if not name.rpartition(".")[2].startswith(("_", "training"))}


def shared_attributes(module: nn.Module, placed: nn.Module, opened: Collection[str]) -> dict[str, Any]:
    """Those that are the same in the module and in what takes its place."""
    own, there = attributes_of(module, opened), attributes_of(placed, opened)
    plain = (bool, int, float, str)
    return {n: v for n, v in own.items() if type(v) not in plain or (type(there.get(n)), there.get(n)) == (type(v), v)}


def held_by(module: nn.Module, name: str) -> Any:
    """What a dotted name below the module holds, parameters and buffers aside."""
    owner, _, attribute = name.rpartition(".")
    return vars(module.get_submodule(owner)).get(attribute)


def openable(module: nn.Module) -> frozenset[str]:
    """Paths of the modules below this one that are not PyTorch's own."""
    inside = ((path, split_class(type(m))[0]) for path, m in module.named_modules() if path)
    return frozenset(path for path, stock in inside if not stock.__module__.startswith("torch.nn."))


def changed_inside(module: nn.Module) -> bool:
    """Whether adapters changed modules of PyTorch below this one, which are never opened."""
    return any(split_class(type(m))[1] for path, m in module.named_modules() if path and path not in openable(module))
