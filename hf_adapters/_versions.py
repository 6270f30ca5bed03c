"""Version bounds of adapters: which releases of torch and transformers a rewrite was proven with."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import metadata

Bounds = Mapping[str, tuple[str, str]]
"""Distribution -> (first version, first version that is too new)."""

PROVEN: Bounds = {"transformers": ("5.19", "5.25"), "torch": ("2.13", "2.14")}
"""What every adapter of the catalogue is proven with, unless it says otherwise."""


def outside(bounds: Bounds) -> str | None:
    """Why the installed versions do not fit; None when they do. A distribution that is not installed fits."""
    for name, (first, after) in bounds.items():
        found = _installed(name)
        if found is not None and not _key(first) <= _key(found) < _key(after):
            return f"{name} {found} is installed, proven with {first} <= version < {after}"
    return None


def describe(bounds: Bounds) -> str:
    """The bounds as people write them: ``torch >=2.13,<2.14``."""
    return "; ".join(f"{name} >={first},<{after}" for name, (first, after) in sorted(bounds.items()))


@functools.cache
def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _key(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, ``2.13.0+cpu`` -> (2, 13, 0); pre-releases count as their release."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in found.group().split(".")) if found else (0,)
