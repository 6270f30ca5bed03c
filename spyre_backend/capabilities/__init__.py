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

from spyre_backend.capabilities.loader import CapabilityFileError, UnknownRelease, available, load, load_as, with_bugs
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
    "SILENT_BUGS_VARIABLE",
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
    "load_as",
    "on_change",
    "set_release",
    "silent_bugs",
    "use",
]

DEFAULT_RELEASE = "2026.07"
ENVIRONMENT_VARIABLE = "SPYRE_BACKEND_RELEASE"
SILENT_BUGS_VARIABLE = "SPYRE_BACKEND_SILENT_BUGS"
"""Silent bugs to switch on, by name, separated by commas: "issue-3770,issue-3264"."""

_chosen: str | None = None
_bugs: str | None = None
_listeners: list[Callable[[], None]] = []


def current() -> Capabilities:
    """Capabilities of the release in force.

    Order: `set_release`/`use`, then the environment variable `SPYRE_BACKEND_RELEASE`, then `DEFAULT_RELEASE`.

    Raises:
        UnknownRelease: the environment names a release that does not exist.
        CapabilityFileError: `SPYRE_BACKEND_SILENT_BUGS` names a bug that no file describes or nothing emulates.
    """
    release = load(_chosen or os.environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_RELEASE)
    named = os.environ.get(SILENT_BUGS_VARIABLE, "") if _bugs is None else _bugs
    return with_bugs(release, named) if named else release


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


@contextmanager
def silent_bugs(*names: str) -> Iterator[Capabilities]:
    """Run a block with these silent bugs of the release switched on, and no others; functions compiled before stay.

    Raises:
        CapabilityFileError: no file describes a bug of this name, or nothing emulates it.
    """
    global _bugs
    before = _bugs
    _bugs = ",".join(names)
    try:
        yield current()
    finally:
        _bugs = before
