"""Which executor runs launched programs: whole tensors, or core by core in sticks.

``SPYRE_EXECUTOR=exact`` chooses for a process, :func:`executor` for a block.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, get_args

Executor = Literal["fast", "exact"]
ENVIRONMENT_VARIABLE: Final = "SPYRE_EXECUTOR"

_chosen: ContextVar[Executor | None] = ContextVar("spyre_executor", default=None)


def current_executor() -> Executor:
    """The executor of this context: that of the innermost :func:`executor`, else SPYRE_EXECUTOR, else "fast".

    Raises:
        ValueError: the variable names no executor.
    """
    return _chosen.get() or _known(os.environ.get(ENVIRONMENT_VARIABLE) or "fast")


def _known(name: str) -> Executor:
    if name == "exact":
        return "exact"
    if name == "fast":
        return "fast"
    raise ValueError(f"there is no executor {name!r}; {ENVIRONMENT_VARIABLE} is one of {', '.join(get_args(Executor))}")


@contextmanager
def executor(name: Executor) -> Iterator[None]:
    """Launch programs with executor ``name`` inside the block; ValueError if there is none of this name."""
    token = _chosen.set(_known(name))
    try:
        yield
    finally:
        _chosen.reset(token)
