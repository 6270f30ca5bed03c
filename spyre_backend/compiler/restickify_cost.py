"""What it costs to move a tensor to another stick: the restickify line of D7.3 and its request model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

STICK_BYTES = 128
BANDWIDTH = 116.0
"""Bytes per ns, reads and writes together, of ``ReStickifyOpHBM`` (D7.3)."""
MEMORY_BANDWIDTH = 150.0
"""Bytes per ns of device memory, one way (D7.1)."""
CORE_BANDWIDTH = 40.0
"""Bytes per ns that one core can move (D7.3)."""
RUN_BYTES = (128, 4096)
"""A DMA request carries between one stick and one burst (D7.3)."""
REQUEST_NS = {1: 8.75, 2: 8.75, 4: 7.5, 8: 7.5, 16: 7.5, 32: 3.75}
"""Cost of one DMA request by cores in use (D7.3)."""


@lru_cache(maxsize=4096)
def restickify_ps(size: tuple[int, ...], eps: int, source: int | None, target: int | None, cores: int = 32) -> int:
    """Picoseconds for moving a tensor of ``size`` from stick dim ``source`` to ``target`` (None: sparse).

    Whole padded sticks are counted, as the device moves them; a sparse side has one element in each stick.  An integer,
    so that sums of costs compare the same in any order.
    """
    read, written = padded_bytes(size, eps, source), padded_bytes(size, eps, target)
    payload = max(read, written)
    byte_ns = payload / MEMORY_BANDWIDTH
    run = min(_run(size, eps, source, target), _run(size, eps, target, source))
    requests = payload / min(max(run, RUN_BYTES[0]), RUN_BYTES[1])
    slots = max(n for n in REQUEST_NS if n <= max(cores, 1))
    bound = max(byte_ns + max(byte_ns, requests * REQUEST_NS[slots]), payload / (cores * CORE_BANDWIDTH))
    return round(1000 * ((read + written) / BANDWIDTH + max(0.0, bound - 2 * byte_ns)))


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
