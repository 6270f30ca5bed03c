"""What dispatch costs on the host, in microseconds of wall-clock time, against a CPU eager operator in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from spyre_backend.program import Program
from spyre_backend.runtime.launch import LoadedProgram

CALLS = 2000
ROUNDS = 15


def _each(call: Callable[[], object], finish: Callable[[], object] = lambda: None) -> float:
    """Microseconds of a call in the fastest of several rounds, with what has to be waited for at its end."""
    call()
    finish()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        finish()
        best = min(best, time.perf_counter() - start)
    return best / CALLS * 1e6


def empty_program() -> LoadedProgram:
    """A program without tensors and operations."""
    from spyre_backend import capabilities

    release = capabilities.current()
    return LoadedProgram(
        Program(
            name="empty", release=release.release, fingerprint=release.fingerprint, tensors=(), ops=(), arguments=()
        )
    )


def measure() -> dict[str, float]:
    """Microseconds of a CPU eager addition, an empty launch and copies of 1 KB in both directions."""
    a, b = torch.ones(512), torch.ones(512)
    host, device = torch.ones(512, dtype=torch.float16), torch.ones(512, dtype=torch.float16, device="spyre")
    program, wait = empty_program(), torch.spyre.synchronize
    return {
        "CPU eager add of 512 floats": _each(lambda: a + b),
        "empty launch": _each(program.launch, wait),
        "copy of 1 KB to the device": _each(lambda: device.copy_(host), wait),
        "copy of 1 KB to the host": _each(lambda: host.copy_(device), wait),
    }


def table() -> str:
    """The measured costs, and each as a multiple of the CPU's operator."""
    measured = measure()
    unit = next(iter(measured.values()))
    head = f"{'Dispatch on this host':30} {'us':>8} {'of CPU eager':>13}"
    return "\n".join([head, *(f"{name:30} {us:8.2f} {us / unit:12.2f}x" for name, us in measured.items())])
