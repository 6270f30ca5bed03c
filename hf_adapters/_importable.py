"""Classes from modules that cannot be imported by name, such as a file that a test or a notebook loaded by its path."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

_known: WeakKeyDictionary[nn.Module, dict[str, ModuleType]] = WeakKeyDictionary()


@contextmanager
def importable(model: nn.Module) -> Iterator[None]:
    """Make the modules that define ``model``'s classes importable while Dynamo traces it.

    Dynamo reads the globals of an inlined ``forward`` by importing its module by name, which fails for a module that
    is not in ``sys.modules``. Those are listed there for the duration of the block and no longer.
    """
    strays = _known.get(model)
    if strays is None:
        strays = _known[model] = _stray_modules(model)
    added = [name for name in strays if name not in sys.modules]
    sys.modules.update({name: strays[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            sys.modules.pop(name, None)


def _stray_modules(model: nn.Module) -> dict[str, ModuleType]:
    strays: dict[str, ModuleType] = {}
    for cls in {base for module in model.modules() for base in type(module).__mro__}:
        for function in vars(cls).values():
            if not isinstance(function, FunctionType):
                continue
            name = function.__globals__.get("__name__")
            if isinstance(name, str) and name not in sys.modules and name not in strays:
                strays[name] = _module_of(name, function.__globals__)
    return strays


def _module_of(name: str, namespace: dict[str, Any]) -> ModuleType:
    """The module object whose namespace this is; a copy of it when that object is gone and only its functions live."""
    for candidate in gc.get_referrers(namespace):
        if isinstance(candidate, ModuleType) and vars(candidate) is namespace:
            return candidate
    copy = ModuleType(name)
    vars(copy).update(namespace)
    return copy
