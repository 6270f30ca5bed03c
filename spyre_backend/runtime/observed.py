"""Who wants to know what was launched: profiles, verdicts, and torch.profiler."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.profiler import record_function

from spyre_backend.program import Program

_lock = threading.Lock()
_sinks: list[list[Program]] = []


@contextmanager
def launches() -> Iterator[list[Program]]:
    """Collect the program of every launch of this process inside the block, in the order of the calls."""
    collected: list[Program] = []
    with _lock:
        _sinks.append(collected)
    try:
        yield collected
    finally:
        with _lock:
            _sinks[:] = [sink for sink in _sinks if sink is not collected]


def launching(program: Program) -> AbstractContextManager[object]:
    """Around a launch: tells every collector, and torch.profiler if one runs.

    The profiler shows the launch as ``spyre::NAME`` with its simulated microseconds in the name; the time that it
    measures itself is the emulator's on the host.
    """
    if _sinks:
        with _lock:
            for sink in _sinks:
                sink.append(program)
    if not torch._C._autograd._profiler_enabled():
        return nullcontext()
    from spyre_backend.emulator.clock import program_time

    return record_function(f"spyre::{program.name} [{program_time(program).us:.2f} us simulated]")
