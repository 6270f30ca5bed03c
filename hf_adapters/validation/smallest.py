"""The smallest module of a model that the device still refuses, and a script that shows it.

The compiler names the module in which a refused operation stands. That module is called alone, with the arguments it
had in the model; where it compiles alone (the operation was only illegal because of what surrounds it), the modules
around it are tried, innermost first.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters._classes import split_class
from hf_adapters.validation.functions import Call, Patch
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.unsupported import unsupported_in
from spyre_backend.errors import SpyreUnsupported

_SCRIPT = '''"""{title}

Run it where hf_adapters is installed: it calls one module on the emulated device and prints what the device refuses.
"""

from pathlib import Path

import torch

import hf_adapters

case = torch.load(Path(__file__).with_name("case.pt"), weights_only=False)
module = hf_adapters.compile(case["module"].eval(), only=(), release={release!r})
module(*case["args"], **case["kwargs"])
print("it runs: the device of this installation no longer refuses it")
'''


@dataclass(frozen=True, kw_only=True, slots=True)
class Smallest:
    """A module that fails alone, or the module named by the compiler when none does."""

    path: str
    """`""` is the model itself."""
    module: nn.Module
    """A copy, patched as it was in the model."""
    call: Call | None
    """Its arguments in the model, float32 on the CPU; None when it was never called."""
    alone: bool
    """Whether it fails when it is called alone."""

    @property
    def name(self) -> str:
        """`package.module:Class` of the stock class."""
        base, _ = split_class(type(self.module))
        return f"{base.__module__}:{base.__qualname__}"

    @property
    def operands(self) -> tuple[tuple[str, tuple[int, ...], str], ...]:
        """(name, shape, dtype) of every tensor argument."""
        return () if self.call is None else tuple(_operands(self.module, self.call))

    def source(self) -> tuple[str, int | None]:
        """Source text of the stock class and its first line; empty where it cannot be found."""
        base, _ = split_class(type(self.module))
        try:
            lines, first = inspect.getsourcelines(base)
        except (OSError, TypeError):
            return "", None
        return "".join(lines), first


def smallest(model: nn.Module, path: str, rule: str, apply: Patch, batch: InputSet, release: str) -> Smallest:
    """The innermost module around `path` that breaks `rule` when it is called alone.

    Args:
        model: stock, float32, on the CPU; left as it was.
        path: path of the module that the compiler named.
        rule: the rule it broke.
        apply: patches the model as it was when it failed.
        batch: the inputs of the calls.
        release: torch-spyre release.
    """
    paths = _around(model, path)
    with apply(model) as candidate:
        calls = recorded_calls(candidate, paths, batch)
        modules = {p: copy.deepcopy(candidate.get_submodule(p)) for p in paths if p}
    for inner in paths:
        if inner in modules and inner in calls and _breaks(modules[inner], calls[inner], release) == rule:
            return Smallest(path=inner, module=modules[inner], call=calls[inner], alone=True)
    first = next((p for p in paths if p in modules), "")
    return Smallest(path=first, module=modules.get(first, model), call=calls.get(first), alone=False)


def recorded_calls(model: nn.Module, paths: Sequence[str], batch: InputSet) -> dict[str, Call]:
    """The first call of each module at `paths` in one forward of `model` on the CPU."""
    calls: dict[str, Call] = {}

    def keep(path: str) -> Callable[..., None]:
        def note(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            calls.setdefault(path, Call.of(args, kwargs))

        return note

    handles = [model.get_submodule(p).register_forward_pre_hook(keep(p), with_kwargs=True) for p in paths if p]
    try:
        with torch.no_grad():
            model(**{key: value.clone() for key, value in batch.kwargs.items()})
    finally:
        for handle in handles:
            handle.remove()
    return calls


def save_reproducer(found: Smallest, folder: Path, *, release: str, title: str) -> Path:
    """Write `reproduce.py` and the module with its arguments; the script's path.

    Args:
        found: what to save; it must have a call.
        folder: is made when it does not exist.
        release: torch-spyre release.
        title: one sentence that says what fails.

    Raises:
        ValueError: the module was never called, so there is nothing to run.
    """
    if found.call is None:
        raise ValueError(f"{found.path or 'the model'} was never called, so no script can show its failure")
    folder.mkdir(parents=True, exist_ok=True)
    content = {"module": found.module, "args": found.call.args, "kwargs": found.call.kwargs}
    torch.save(content, folder / "case.pt")
    script = folder / "reproduce.py"
    script.write_text(_SCRIPT.format(title=title.replace('"""', "'''"), release=release), encoding="utf-8")
    return script


def _around(model: nn.Module, path: str) -> list[str]:
    """`path` and the modules around it, innermost first; those that exist."""
    known = {name for name, _ in model.named_modules()}
    parts = path.split(".")
    return [p for end in range(len(parts), 0, -1) if (p := ".".join(parts[:end])) in known]


def _breaks(module: nn.Module, call: Call, release: str) -> str | None:
    """The rule that a module breaks when it is called alone on the device."""
    import hf_adapters

    twin = copy.deepcopy(module).eval()
    try:
        compiled = hf_adapters.compile(twin, only=(), release=release)
        with torch.no_grad():
            compiled(*call.args, **call.kwargs)
    except Exception as error:
        refused: SpyreUnsupported | None = unsupported_in(error)
        return None if refused is None else refused.rule
    return None


def _operands(module: nn.Module, call: Call) -> list[tuple[str, tuple[int, ...], str]]:
    names = [name for name in inspect.signature(type(module).forward).parameters if name != "self"]
    named: list[tuple[str, Any]] = [
        (names[index] if index < len(names) else str(index), value) for index, value in enumerate(call.args)
    ]
    named += list(call.kwargs.items())
    found = []
    for name, value in named:
        found += [(name, tuple(t.shape), str(t.dtype)) for t in _flat(value)]
    return found


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [t for item in value.values() for t in _flat(item)]
    if isinstance(value, (list, tuple)):
        return [t for item in value for t in _flat(item)]
    return []
