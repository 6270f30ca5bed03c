"""Where the temporaries of a bundle lie in its region of device memory (D4.5: ``HBM_POOL_PLANNING``).

With the pool on, temporaries whose lives do not meet share bytes; off, each has bytes of its own (a version of the
device's pool corrupted data, so models switch it off).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Life:
    """A temporary of ``num_bytes`` that operations ``first`` to ``last`` touch, both included."""

    name: str
    first: int
    last: int
    num_bytes: int


def plan(lives: Sequence[Life], *, shared: bool) -> dict[str, int]:
    """Byte offset of each temporary, a multiple of the stick's 128 bytes.

    The largest are placed first, each at the lowest offset where it meets nobody; this is within a few percent of the
    least possible in practice, and takes no search.
    """
    placed: list[tuple[Life, int]] = []
    for life in sorted(lives, key=lambda item: (-item.num_bytes, item.first, item.name)):
        taken = sorted(
            (offset, offset + other.num_bytes)
            for other, offset in placed
            if not shared or (other.first <= life.last and life.first <= other.last)
        )
        place = 0
        for start, end in taken:
            if place + life.num_bytes <= start:
                break
            place = max(place, end)
        placed.append((life, place))
    return {life.name: offset for life, offset in placed}


def extent(lives: Sequence[Life], offsets: dict[str, int]) -> int:
    """Bytes of the region that a plan needs."""
    return max((offsets[life.name] + life.num_bytes for life in lives), default=0)
