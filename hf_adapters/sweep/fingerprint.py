"""What a verdict depends on, as one hash; made without importing torch, so that a finished sweep is known at once."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path

_PACKAGES = ("torch", "transformers", "numpy")
_CODE_SUFFIXES = {".py", ".toml", ".cpp", ".h", ".hpp"}
_ADAPTERS = (("hf_adapters", "adapters/**/*"),)
#: Files of this project that decide a verdict; the rest (store, reports, pages) may change without a new sweep.
_DECIDING = (
    ("spyre_backend", "**/*"),
    ("hf_adapters", "*.py"),
    ("hf_adapters", "validation/**/*"),
    ("hf_adapters", "sweep/work.py"),
    ("hf_adapters.corpus", "architectures.py"),
    ("hf_adapters.corpus", "build.py"),
    ("hf_adapters.corpus", "cut.py"),
    ("hf_adapters.corpus", "inputs.py"),
    ("hf_adapters.corpus", "weights.py"),
)
_NOT_DECIDING = frozenset({"hf_adapters/cli.py", "hf_adapters/st_backend.py"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Identity of everything that a verdict depends on.

    Attributes:
        value: hash over all the others; verdicts with another value are tried again.
        base: the same without the adapters: what verdicts of unpatched models depend on.
        release: emulated torch-spyre release.
        release_fingerprint: hash of that release's capability data.
        code: hash of the device, the compiler and the validator.
        adapters: hash of the adapters.
        versions: package versions.
    """

    value: str
    base: str
    release: str
    release_fingerprint: str
    code: str
    adapters: str
    versions: dict[str, str]


def fingerprint(release: str, dtype: str | None = None) -> Fingerprint:
    """Identity of the verdicts that this installation would give for a release.

    Args:
        release: emulated torch-spyre release.
        dtype: name of the format that is forced; None where the range pass chooses.

    Raises:
        UnknownRelease: no capability file has that name (a ValueError).
    """
    from spyre_backend import capabilities

    release_fingerprint = capabilities.load(release).fingerprint
    code, adapters, versions = code_hash(), adapters_hash(), package_versions()
    forced = () if dtype is None else (f"dtype={dtype}",)
    packages = (f"{name}={number}" for name, number in versions.items())
    base = _digest(release, release_fingerprint, code, *packages, *forced)
    return Fingerprint(
        value=_digest(base, adapters),
        base=base,
        release=release,
        release_fingerprint=release_fingerprint,
        code=code,
        adapters=adapters,
        versions=versions,
    )


def package_versions() -> dict[str, str]:
    """Installed versions of what computes the numbers, and of Python."""
    versions = {"python": ".".join(str(part) for part in sys.version_info[:3])}
    for name in (*_PACKAGES, "hf-adapters"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


@cache
def code_hash() -> str:
    """Hash of the project's files that decide verdicts, adapters apart (their paths and contents)."""
    return hash_files(_files(_DECIDING))


@cache
def adapters_hash() -> str:
    """Hash of the catalogue's files."""
    return hash_files(_files(_ADAPTERS))


def hash_files(paths: Iterable[tuple[str, Path]]) -> str:
    """Hash of named files, independent of their order and of where they are installed."""
    whole = hashlib.sha256()
    for name, path in sorted(paths):
        whole.update(name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return whole.hexdigest()[:24]


def _digest(*parts: str) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() + b"\0")
    return whole.hexdigest()[:24]


def _files(patterns: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Path]]:
    for package, pattern in patterns:
        root = Path(str(files(package)))
        for path in root.glob(pattern):
            name = f"{package}/{path.relative_to(root).as_posix()}"
            if path.is_file() and path.suffix in _CODE_SUFFIXES and name not in _NOT_DECIDING:
                yield name, path
