"""What it costs to move a tensor to another stick: the restickify line of D7.3 and its request model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from spyre_backend.emulator import clock_constants as constants
from spyre_backend.emulator import clock_rates as rates

STICK_BYTES = 128


@lru_cache(maxsize=4096)
def restickify_ps(size: tuple[int, ...], eps: int, source: int | None, target: int | None, cores: int = 32) -> int:
    """Picoseconds for moving a tensor of ``size`` from stick dim ``source`` to ``target`` (None: sparse).

    Whole padded sticks are counted, as the device moves them; a sparse side has one element in each stick.  An integer,
    so that sums of costs compare the same in any order.
    """
    read, written = padded_bytes(size, eps, source), padded_bytes(size, eps, target)
    payload = max(read, written)
    run = min(_run(size, eps, source, target), _run(size, eps, target, source))
    both_ways = rates.restickify_ns(payload, run, max(cores, 1))
    return round(1000 * (both_ways - (2 * payload - read - written) / constants.RESTICKIFY))


def padded_bytes(size: Sequence[int], eps: int, stick: int | None) -> int:
    """Device bytes of a tensor of ``size`` with ``stick`` along the stick: whole sticks, always (D2.1)."""
    sticks = math.prod(n if d != stick else -(-n // eps) for d, n in enumerate(size))
    return STICK_BYTES * sticks


def _run(size: Sequence[int], eps: int, stick: int | None, along: int | None) -> int:
    """Bytes that lie together on the side whose stick is ``stick`` and that one stick of the other side needs.

    Sticks that follow each other along ``along`` are one run if no other dim lies between them in the default order of
    D2.2 (stick count, first dim, lanes); otherwise every stick is a run of its own [I].
    """
    if along is None or stick is None:
        return STICK_BYTES
    others = [d for d in range(len(size)) if d != stick]
    device_order = [*others[1:], stick, others[0]] if others else [stick]
    inner = device_order[device_order.index(along) + 1 :]
    count = math.prod(-(-size[d] // eps) if d == stick else size[d] for d in inner)
    return STICK_BYTES * (size[along] if count == 1 else 1)
