"""Which modules of a model are compiled, and how the compiled forward sits on the instance."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

RECOMPILES = 1_000_000
"""Every (batch bucket, length bucket) is a graph of its own; Dynamo's default of 8 would end in silent eager runs."""

EAGER = "runs_eagerly"
"""Instance attribute of a module whose own forward stays out of graphs."""

_local = threading.local()


def find_regions(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """The modules that are compiled one by one: repeated layers, and whole branches that hold none.

    Every item of the outermost ``ModuleList`` s is a region, because layers of one class share one program; around
    them, embeddings, final norms, poolers and projections are. Left out are plain embeddings (a lookup is one call),
    modules that hold nothing but tables, which the host computes from, and those that an adapter marked with
    :data:`EAGER`, because their inputs are prepared on the host; what lies below and beside them is compiled by itself.
    """
    found: list[tuple[str, nn.Module]] = []
    seen: set[int] = set()
    _visit("", model, found, seen)
    return found


def _visit(path: str, module: nn.Module, found: list[tuple[str, nn.Module]], seen: set[int]) -> None:
    for name, child in module.named_children():
        child_path = f"{path}.{name}" if path else name
        if id(child) in seen:
            continue
        seen.add(id(child))
        if isinstance(child, nn.ModuleList):
            for index, item in enumerate(child):
                if id(item) not in seen:
                    seen.add(id(item))
                    found.append((f"{child_path}.{index}", item))
        elif any(isinstance(inner, nn.ModuleList) or EAGER in inner.__dict__ for inner in child.modules()):
            _visit(child_path, child, found, seen)
        elif _worth_compiling(child):
            found.append((child_path, child))


def _worth_compiling(module: nn.Module) -> bool:
    if type(module) is nn.Embedding or isinstance(module, nn.Identity | nn.modules.dropout._DropoutNd):
        return False
    has_parameters = next(module.parameters(), None) is not None
    return has_parameters or next(module.buffers(), None) is None


class CompiledForward:
    """The instance attribute ``forward`` of a region.

    Hooks of the region itself run around it as always, since only the forward is compiled. A region with hooks on inner
    modules runs uncompiled, because Dynamo would freeze the hooks that were there at the first compilation.
    """

    def __init__(self, module: nn.Module, backend: str, release: str | None) -> None:
        self.module = module
        self.backend = backend
        self.release = release
        self._inner: list[nn.Module] | None = None

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        bound: Callable[..., Any] = type(self.module).forward.__get__(self.module)
        return bound

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        stock = type(self.module).forward
        if getattr(_local, "eager", False) or self._hooked():
            return stock(self.module, *args, **kwargs)
        return compiled(stock, self.backend, self.release)(self.module, *args, **kwargs)

    def _hooked(self) -> bool:
        if self._inner is None:
            self._inner = [module for module in self.module.modules() if module is not self.module]
        return any(module._forward_hooks or module._forward_pre_hooks for module in self._inner)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_inner": None}


@functools.cache
def compiled(function: Callable[..., Any], backend: str, release: str | None) -> Callable[..., Any]:
    """``torch.compile`` of an unbound forward, once per function, backend and release.

    All instances share it, so equal layers of one or several models share their graphs; releases do not, because the
    same graph lowers differently for each.
    """
    # The two keywords are missing from the overloads that torch declares.
    compile_function: Any = torch.compile
    compiled_function: Callable[..., Any] = compile_function(
        function, backend=backend, dynamic=False, recompile_limit=RECOMPILES, isolate_recompiles=True
    )
    return compiled_function


@contextmanager
def uncompiled() -> Iterator[None]:
    """Regions called by this thread inside the block run their plain forward."""
    before = getattr(_local, "eager", False)
    _local.eager = True
    try:
        yield
    finally:
        _local.eager = before


@contextmanager
def strict_dynamo() -> Iterator[None]:
    """Dynamo settings under which nothing falls back to eager without an error."""
    import torch._dynamo.config as config

    with config.patch(
        accumulated_recompile_limit=RECOMPILES,
        recompile_limit=RECOMPILES,
        fail_on_recompile_limit_hit=True,
        suppress_errors=False,
    ):
        yield
