"""The catalogue of adapters is the folder ``hf_adapters/adapters``: one file, one adapter."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from pathlib import Path

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
    """16 hex digits of a SHA-256 over the adapter's file and the helper files it uses; kept with every verdict."""
    file = inspect.getsourcefile(adapter.apply)
    if file is None:
        return "unknown"
    start = Path(file).with_name(f"{adapter.name}.py")
    digest = hashlib.sha256()
    for source in _with_helpers(start if start.exists() else Path(file)):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _with_helpers(file: Path) -> list[Path]:
    """The file and the files beside it that it imports, directly or not, sorted by name."""
    found: dict[str, Path] = {}
    pending = [file]
    while pending:
        source = pending.pop()
        if source.name in found or not source.exists():
            continue
        found[source.name] = source
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module is not None and "adapters" in node.module:
                names = [alias.name for alias in node.names] + [node.module.rpartition(".")[2]]
                pending.extend(source.with_name(f"{name}.py") for name in names)
    return [found[name] for name in sorted(found)]
