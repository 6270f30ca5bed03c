"""What each emulated torch-spyre release can lower.

    >>> from spyre_backend import capabilities
    >>> capabilities.current().operator("aten.pow.Tensor_Scalar").compiled
    'unsupported'
    >>> with capabilities.use("2026.09") as release:
    ...     release.operator("aten.pow.Tensor_Scalar").compiled
    'native'

The release is chosen for the whole process: `SPYRE_BACKEND_RELEASE` in the environment, `set_release`, or `use` for a
block. Programs are cached by `Capabilities.fingerprint`, so a change of release never runs a program that was
compiled for another one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spyre_backend.capabilities.loader import CapabilityFileError, UnknownRelease, available, load
from spyre_backend.capabilities.model import (
    Capabilities,
    DType,
    DTypes,
    Limits,
    Numerics,
    OperatorEntry,
    Rule,
    Settings,
    SilentBug,
    Support,
)

__all__ = [
    "DEFAULT_RELEASE",
    "ENVIRONMENT_VARIABLE",
    "Capabilities",
    "CapabilityFileError",
    "DType",
    "DTypes",
    "Limits",
    "Numerics",
    "OperatorEntry",
    "Rule",
    "Settings",
    "SilentBug",
    "Support",
    "UnknownRelease",
    "available",
    "current",
    "load",
    "on_change",
    "set_release",
    "use",
]

DEFAULT_RELEASE = "2026.07"
ENVIRONMENT_VARIABLE = "SPYRE_BACKEND_RELEASE"

_chosen: str | None = None
_listeners: list[Callable[[], None]] = []


def current() -> Capabilities:
    """Capabilities of the release in force.

    Order: `set_release`/`use`, then the environment variable `SPYRE_BACKEND_RELEASE`, then `DEFAULT_RELEASE`.

    Raises:
        UnknownRelease: the environment names a release that does not exist.
    """
    return load(_chosen or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_RELEASE)


def set_release(name: str | None) -> None:
    """Choose the release for this process; None goes back to the environment or the default.

    Raises:
        UnknownRelease: `name` is not one of `available()`; the choice is left as it was.
    """
    global _chosen
    if name is not None:
        load(name)
    _chosen = name
    for listener in _listeners:
        listener()


def on_change(listener: Callable[[], None]) -> None:
    """Have `listener` called after every choice of a release, such as the native copies, which hold its numerics."""
    _listeners.append(listener)


@contextmanager
def use(name: str | None) -> Iterator[Capabilities]:
    """Run a block under the release `name` (None: leave it as it is), then restore the earlier choice.

    Raises:
        UnknownRelease: `name` is not one of `available()`.
    """
    before = _chosen
    if name is not None:
        set_release(name)
    try:
        yield current()
    finally:
        set_release(before)
