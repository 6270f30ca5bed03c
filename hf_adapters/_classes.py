"""Generated subclasses: how one module instance gets other behaviour while its class stays untouched.

``patched_class(BertLayer, (Mixin,))`` is a subclass of ``Mixin`` and ``BertLayer`` that looks like ``BertLayer`` (name,
qualified name, ``str(type)``) and is built once per combination, because Dynamo guards on the type: twelve layers
patched alike must share one type to share one compiled program. Instances pickle and deepcopy as "original class plus
mixins", never by the generated class, which no module holds under its name.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Rebinding:
    """Mixin description: the stock forward with some global names bound to other callables.

    Attributes:
        names: pairs (global name, replacement); replacements must be importable so that the module still pickles.
    """

    names: tuple[tuple[str, Callable[..., Any]], ...]


MixinSpec = type | Rebinding

_lock = threading.RLock()
_classes: dict[tuple[type, tuple[MixinSpec, ...]], type] = {}


def split_class(cls: type) -> tuple[type, tuple[MixinSpec, ...]]:
    """(stock class, mixins outermost first) of a class; a stock class has no mixins."""
    spec = cls.__dict__.get("_hf_adapters_spec")
    return spec if spec is not None else (cls, ())


def patched_class(base: type, mixins: tuple[MixinSpec, ...]) -> type:
    """The generated class for ``base`` with ``mixins`` (outermost first); ``base`` itself when there are none."""
    if not mixins:
        return base
    with _lock:
        key = (base, mixins)
        if key not in _classes:
            _classes[key] = _generate(base, mixins)
        return _classes[key]


def rebuild(base: type, mixins: tuple[MixinSpec, ...]) -> nn.Module:
    """An empty instance of the generated class; pickle and copy fill in the state."""
    cls = patched_class(base, mixins)
    instance: nn.Module = object.__new__(cls)
    return instance


def _reduce_ex(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
    base, mixins = split_class(type(self))
    own = getattr(self, "reduce_patched", None)
    if own is not None:
        reduced: tuple[Any, ...] = own()
        return reduced
    return rebuild, (base, mixins), self.__getstate__()  # type: ignore[no-untyped-call]


def _generate(base: type, mixins: tuple[MixinSpec, ...]) -> type:
    bases = [_rebound_mixin(base, spec) if isinstance(spec, Rebinding) else spec for spec in mixins]
    namespace: dict[str, Any] = {
        "__module__": _visible_module(base, bases[0]),
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": _reduce_ex,
        "_hf_adapters_spec": (base, mixins),
    }
    outer = bases[0]
    if getattr(outer, "keeps_signature", False):
        namespace["forward"] = _with_stock_signature(outer, base)
    try:
        return type(base)(base.__name__, (*bases, base), namespace)
    except NameError:
        # transformers evaluates the annotations of every new subclass, in modules that may be gone.
        return type(base)(base.__name__, (_Unannounced, *bases, base), namespace)


class _Unannounced:
    """First base of a generated class that its stock class is not told about."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Nothing: what the stock class would note down, the generated one inherits."""


def _visible_module(base: type, mixin: type) -> str:
    # Dynamo skips attribute guards on classes that claim to live in torch.nn, which would hide our mixin from it.
    return mixin.__module__ if base.__module__.startswith("torch.") else base.__module__


def _with_stock_signature(outer: type, base: type) -> Callable[..., Any]:
    """``outer.forward`` that still shows the stock signature; callers such as sentence-transformers inspect it."""
    body: Callable[..., Any] = outer.forward  # type: ignore[attr-defined]

    @functools.wraps(base.forward)  # type: ignore[attr-defined]
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return body(self, *args, **kwargs)

    return forward


def _rebound_mixin(base: type, spec: Rebinding) -> type:
    forward = copy_function(base.forward, dict(spec.names))  # type: ignore[attr-defined]
    return type("Rebound", (), {"forward": forward, "__module__": __name__})


def with_mixin(mixins: tuple[MixinSpec, ...], new: MixinSpec) -> tuple[MixinSpec, ...]:
    """``mixins`` with ``new`` outermost; rebindings are merged into one, which stays innermost.

    Innermost, because a rebound forward is a copy of the stock one and calls no ``super().forward``: any mixin below it
    would be skipped.
    """
    if not isinstance(new, Rebinding):
        return mixins if new in mixins else (new, *mixins)
    names: dict[str, Callable[..., Any]] = {}
    for spec in mixins:
        if isinstance(spec, Rebinding):
            names.update(spec.names)
    names.update(new.names)
    return (*(m for m in mixins if not isinstance(m, Rebinding)), Rebinding(tuple(sorted(names.items()))))


def copy_function(function: Any, names: Mapping[str, Callable[..., Any]]) -> Any:
    """A copy of ``function`` (and of the functions its decorators wrap) in which global ``names`` are replaced.

    Raises:
        ValueError: when none of the functions involved uses one of the names, so that the copy would change nothing.
    """
    used: set[str] = set()
    copied = _copy_function(function, names, used, {})
    missing = set(names) - used
    if missing:
        raise ValueError(
            f"{function.__qualname__} does not use the global names {sorted(missing)}; nothing to rebind there"
        )
    return copied


def _copy_function(
    function: Any, names: Mapping[str, Callable[..., Any]], used: set[str], done: dict[int, types.FunctionType]
) -> types.FunctionType:
    mine = {n for n in names if n in _global_names(function.__code__)}
    used |= mine
    scope = _scope(function.__globals__, {n: names[n] for n in mine}) if mine else function.__globals__
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    copied = types.FunctionType(function.__code__, scope, function.__name__, function.__defaults__, cells or None)
    # Before the closure is looked into: decorated functions may reach themselves through it.
    done[id(function)] = copied
    for cell, stock in zip(cells, function.__closure__ or (), strict=True):
        _fill_cell(cell, stock, names, used, done)
    copied.__kwdefaults__ = function.__kwdefaults__
    copied.__annotations__ = dict(function.__annotations__)
    copied.__qualname__ = function.__qualname__
    copied.__module__ = function.__module__
    copied.__dict__.update(function.__dict__)
    for cell in cells:
        if getattr(function, "__wrapped__", None) is not None and _is_copy_of(cell, function.__wrapped__):
            copied.__dict__["__wrapped__"] = cell.cell_contents
    return copied


def _is_copy_of(cell: types.CellType, function: Any) -> bool:
    content = _content(cell)
    return isinstance(content, types.FunctionType) and content.__code__ is function.__code__


def _is_empty(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _fill_cell(
    cell: types.CellType,
    stock: types.CellType,
    names: Mapping[str, Callable[..., Any]],
    used: set[str],
    done: dict[int, types.FunctionType],
) -> None:
    content = _content(stock)
    if isinstance(content, types.FunctionType) and _reaches(content, names, set()):
        content = done.get(id(content)) or _copy_function(content, names, used, done)
    if content is not None or not _is_empty(stock):
        cell.cell_contents = content


def _reaches(function: types.FunctionType, names: Mapping[str, Callable[..., Any]], seen: set[int]) -> bool:
    if id(function) in seen:
        return False
    seen.add(id(function))
    if any(n in _global_names(function.__code__) for n in names):
        return True
    contents = [_content(cell) for cell in function.__closure__ or ()]
    return any(isinstance(c, types.FunctionType) and _reaches(c, names, seen) for c in contents)


def _global_names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= _global_names(const)
    return found


def _scope(stock: dict[str, Any], replaced: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Globals for a copied function, registered as a module of its own.

    Dynamo looks the globals of an inlined function up by the module name found in them, so the copy needs a module that
    really holds the replaced names; otherwise its guards would compare against the stock ones.
    """
    label = ",".join(f"{n}={f.__module__}.{f.__qualname__}" for n, f in sorted(replaced.items()))
    digest = hashlib.sha256(f"{stock['__name__']}:{label}".encode()).hexdigest()[:16]
    name = f"{__name__}_{digest}"
    if name not in sys.modules:
        module = types.ModuleType(name)
        module.__dict__.update({**stock, **replaced, "__name__": name})
        sys.modules[name] = module
    return sys.modules[name].__dict__
