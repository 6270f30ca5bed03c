"""How copies and launches reach the device.

``graph``: as the first releases did, each builds a graph, compiles, loads and parses it before it runs (D3.5, D3.6).
``direct``: copies without a graph since #1007, launches since #1823 (D3.5). Both give the same results; they differ in
what they cost, in simulated time as on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from spyre_backend import _C
from spyre_backend.emulator import clock
from spyre_backend.runtime import timing

__all__ = ["DispatchPaths", "apply", "paths", "use_paths"]


@dataclass(frozen=True, kw_only=True, slots=True)
class DispatchPaths:
    """The path of copies between host and device, and that of launches."""

    copies: clock.Dispatch = "direct"
    launches: clock.Dispatch = "direct"


_chosen: DispatchPaths | None = None


def paths() -> DispatchPaths:
    """The paths in force: those of :func:`use_paths`, else the clock's setting (``SPYRE_CLOCK_DISPATCH``) for both."""
    if _chosen is not None:
        return _chosen
    default = clock.settings().dispatch
    return DispatchPaths(copies=default, launches=default)


def apply() -> None:
    """Makes the runtime take the paths in force."""
    now = paths()
    _C.set_graph_dispatch(copies=now.copies == "graph", launches=now.launches == "graph")
    timing.apply(copies=now.copies, launches=now.launches)


@contextmanager
def use_paths(chosen: DispatchPaths) -> Iterator[None]:
    """Take other paths in a block, in all threads of the process."""
    global _chosen
    before, _chosen = _chosen, chosen
    apply()
    try:
        yield
    finally:
        _chosen = before
        apply()
