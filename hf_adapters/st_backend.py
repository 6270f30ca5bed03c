"""``SentenceTransformer(path, backend="spyre")``, available as soon as hf_adapters is imported.

sentence-transformers knows its backends by name and has no registry for others. Its ``Transformer`` module loads the
model in one method, ``_load_model``; that method is wrapped so that ``"spyre"`` loads the model as ``"torch"`` would
and compiles it. Checkpoints that ask for code of their repository, of families that have a native class
(:mod:`hf_adapters.natives`), are loaded by that class, and no remote code is run; for that, the methods that read
their config and their ``modules.json`` are wrapped, too. The task of a checkpoint with adapters for several is
``model_kwargs={"task": ...}``. sentence-transformers itself is not imported: when it is not loaded yet, an import hook
wraps the methods right after the import. ``uninstall()`` takes all back. Models that ask for another backend get the
stock methods with their own arguments; no class is replaced.

``SentenceTransformer``, ``CrossEncoder``, ``SparseEncoder`` and ``MultiVectorEncoder`` all load through that method.
Only the transformers model runs on the device; pooling, Dense and Normalize heads stay on the host, in the caller's
dtype.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

BACKEND = "spyre"
WRAPPED = {
    "sentence_transformers.base.modules.transformer": ("Transformer", ("_load_config", "_load_model")),
    "sentence_transformers.base.model": ("BaseModel", ("_load_modules",)),
}
"""Modules of version 6, a class in each, and its methods that are wrapped."""
PROVEN = {"sentence-transformers": ("6.0", "7")}
"""The versions that the wrapper was tested with; others are refused when the backend is asked for."""


def install() -> None:
    """Wrap the loading methods now, or when their classes get imported; calling it again changes nothing."""
    for name in WRAPPED:
        module = sys.modules.get(name)
        if module is not None:
            _wrap(module)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def uninstall() -> None:
    """Remove the wrappers and the import hook; models loaded before keep working."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for module_name, (_, methods) in WRAPPED.items():
        cls = _class(sys.modules.get(module_name))
        for name in methods if cls is not None else ():
            stock = getattr(cls.__dict__.get(name), "_hf_adapters_stock", None)
            if stock is not None:
                setattr(cls, name, stock)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules as usual and wraps the class once its module has been executed."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in WRAPPED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """The loader found by the ordinary finder, plus the wrapping afterwards."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        module: types.ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        self._loader.exec_module(module)
        _wrap(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


def _class(module: types.ModuleType | None) -> Any:
    name, methods = WRAPPED.get(getattr(module, "__name__", ""), ("", ()))
    cls = getattr(module, name, None)
    return cls if isinstance(cls, type) and all(hasattr(cls, method) for method in methods) else None


def _wrap(module: types.ModuleType) -> None:
    cls = _class(module)
    for name in WRAPPED[module.__name__][1] if cls is not None else ():
        stock = getattr(cls, name)
        if not hasattr(stock, "_hf_adapters_stock"):
            wrapper: Any = functools.wraps(stock)(_WRAPPERS[name](stock))
            wrapper._hf_adapters_stock = stock
            setattr(cls, name, wrapper)


def _loading_model(stock: Any) -> Any:
    def load_model(self: Any, model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        # The backend is an argument in the middle, which callers give by position or by name.
        if not any(_is_backend(value) for value in (*args, *kwargs.values())):
            return stock(self, model_name_or_path, *args, **kwargs)
        check_version()
        from hf_adapters.natives.sentence_modules import note, remember
        from hf_adapters.natives.sentences import find
        from hf_adapters.runner import compile as compile_model

        published = find(model_name_or_path, kwargs)
        if published is not None and published.native:
            transformer_task, options = _task_and_options(args, kwargs)
            model = published.load(transformer_task, options)
            note(model, published, options)
            remember(self, model)
            return _followed(self, compile_model(model, target="spyre"))
        args = tuple("torch" if _is_backend(value) else value for value in args)
        kwargs = {key: "torch" if _is_backend(value) else value for key, value in kwargs.items()}
        if published is None:
            model = stock(self, model_name_or_path, *args, **kwargs)
        else:
            model = published.checked(*stock(self, model_name_or_path, *args, output_loading_info=True, **kwargs))
        remember(self, model)
        return _followed(self, compile_model(model.eval(), target="spyre"))

    return load_model


def _followed(module: Any, model: Any) -> Any:
    """The model, followed in its dtype by the heads: the library casts them to that of the module's first parameter."""
    module.parameters = functools.partial(_parameters, module, model)
    return model


def _parameters(module: Any, model: Any, recurse: bool = True) -> Iterator[Any]:
    """Ahead of the parameters, which lie on the device in its own format, an empty one in the dtype of the results."""
    import torch

    yield torch.nn.Parameter(torch.empty(0, dtype=model.dtype), requires_grad=False)
    yield from type(module).parameters(module, recurse)


def _loading_config(stock: Any) -> Any:
    def load_config(self: Any, model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if any(_is_backend(value) for value in given):
            check_version()
            from hf_adapters.natives.sentences import find

            options = next((value for value in given if isinstance(value, dict)), {})
            published = find(model_name_or_path, options)
            if published is not None:
                return published.config(), False  # no PEFT checkpoint: adapters of a task are merged
        return stock(self, model_name_or_path, *args, **kwargs)

    return load_config


def _loading_modules(stock: Any) -> Any:
    parameters = inspect.signature(stock)

    def load_modules(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _is_backend(self.backend):
            return stock(self, *args, **kwargs)
        check_version()
        from hf_adapters.natives import sentence_modules

        bound = parameters.bind(self, *args, **kwargs)
        bound.apply_defaults()
        (_, model), (_, name), *others = bound.arguments.items()
        return sentence_modules.load_modules(stock, model, name, dict(others))

    return load_modules


_WRAPPERS = {"_load_config": _loading_config, "_load_model": _loading_model, "_load_modules": _loading_modules}


def _task_and_options(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a model is loaded for, and the caller's ``model_kwargs`` among the arguments of ``_load_model``."""
    own = ("transformer_task", "config", "backend", "is_peft_model")
    given = {**dict(zip(own, args, strict=False)), **kwargs}
    return str(given["transformer_task"]), {key: value for key, value in kwargs.items() if key not in own}


def check_version() -> None:
    """Refuse versions of sentence-transformers whose loading was not tested.

    Raises:
        UnsupportedOptionError: names the installed version and the tested ones.
    """
    from hf_adapters._versions import outside
    from hf_adapters.errors import UnsupportedOptionError

    reason = outside(PROVEN)
    if reason is not None:
        raise UnsupportedOptionError(
            f'backend="{BACKEND}": {reason}. Install a tested version, or load with backend="torch" and call '
            "hf_adapters.compile(model)"
        )


def _is_backend(value: Any) -> bool:
    return isinstance(value, str) and value == BACKEND
