"""The catalogue of adapters is the folder ``hf_adapters/adapters``: one file, one adapter."""

from __future__ import annotations

import functools
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable

from hf_adapters.errors import UnknownAdapterError
from hf_adapters.protocols import Adapter


@functools.cache
def catalogue() -> tuple[Adapter, ...]:
    """All adapters, by ``order`` and then by name.

    Raises:
        ImportError: an adapter file cannot be imported.
        TypeError: a public file in the folder has no ``ADAPTER`` or names it differently from the file.
    """
    import hf_adapters.adapters as folder

    found: list[Adapter] = []
    for info in pkgutil.iter_modules(folder.__path__):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{folder.__name__}.{info.name}")
        adapter = getattr(module, "ADAPTER", None)
        if not isinstance(adapter, Adapter) or adapter.name != info.name:
            raise TypeError(
                f"{module.__file__}: an adapter file needs ADAPTER = Adapter(name={info.name!r}, ...); "
                "start the file name with an underscore when it only holds helpers"
            )
        found.append(adapter)
    return tuple(sorted(found, key=lambda a: (a.order, a.name)))


def select(adapters: Iterable[Adapter], only: Iterable[str] | None) -> tuple[Adapter, ...]:
    """The adapters named in ``only``, in catalogue order; all of them when ``only`` is None.

    Raises:
        UnknownAdapterError: a name is not in the catalogue.
    """
    known = tuple(adapters)
    if only is None:
        return known
    wanted = {only} if isinstance(only, str) else set(only)
    unknown = wanted - {a.name for a in known}
    if unknown:
        raise UnknownAdapterError(
            f"no adapter is called {', '.join(sorted(map(repr, unknown)))}; known are: "
            f"{', '.join(a.name for a in known) or 'none'}"
        )
    return tuple(a for a in known if a.name in wanted)


def source_hash(adapter: Adapter) -> str:
    """First 16 hex digits of the SHA-256 of the file that the adapter is written in; kept with every verdict."""
    file = inspect.getsourcefile(adapter.apply)
    if file is None:
        return "unknown"
    with open(file, "rb") as stream:
        return hashlib.sha256(stream.read()).hexdigest()[:16]
