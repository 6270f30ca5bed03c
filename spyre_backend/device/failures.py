"""Errors of asynchronous work: they surface at the next synchronisation, and say where the work was launched."""

from __future__ import annotations

from spyre_backend.errors import SpyreError

__all__ = ["launched_at"]


def launched_at(error: BaseException, where: str) -> None:
    """Adds the launching line to an error before it is raised.

    Args:
        error: What the operation raised on its worker thread.
        where: ``file:line in function``; empty when no Python code launched it.
    """
    if not where:
        return
    text = f"launched at {where}"
    if isinstance(error, SpyreError) and len(error.args) == 1:
        error.args = (f"{error.args[0]}\n  {text}",)
    else:
        error.add_note(text)
