"""Cutting a core's slice into tiles whose whole sticks fit its scratchpad beside the residents (D1.2, D4.5)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from spyre_backend.emulator.exact_errors import CapacityError

Ranges = tuple[range, ...]


def tile_extents(
    ranges: Ranges,
    units: Sequence[int],
    cuttable: Sequence[int],
    num_bytes: Callable[[Sequence[int]], int],
    budget: int,
) -> tuple[int, ...]:
    """Extents of a tile that fits: loops are halved in the order of `cuttable`, each as far as it helps.

    Args:
        ranges: the core's slice.
        units: elements of each loop that stay together.
        cuttable: loops that may be cut, those that are cut first in front.
        num_bytes: working set of a tile with these extents.
        budget: bytes that the scratchpad has left.

    Raises:
        CapacityError: the smallest tile does not fit.
    """
    extents = [max(len(part), 1) for part in ranges]
    needed = num_bytes(extents)
    for loop in cuttable:
        while needed > budget and extents[loop] > units[loop]:
            pieces = -(-extents[loop] // units[loop])
            shorter = [*extents]
            shorter[loop] = -(-pieces // 2) * units[loop]
            reached = num_bytes(shorter)
            if reached >= needed:
                break
            extents, needed = shorter, reached
    if needed > budget:
        raise CapacityError(
            f"a tile of {extents} needs {needed} bytes of scratchpad in whole sticks, {budget} are left"
        )
    return tuple(extents)


def tiles(ranges: Ranges, extents: Sequence[int]) -> Iterator[Ranges]:
    """The tiles of a slice in row-major order; an empty range is one empty tile."""
    cuts = [
        [range(start, min(start + extent, part.stop)) for start in range(part.start, part.stop, extent)] or [part]
        for part, extent in zip(ranges, extents, strict=True)
    ]
    return itertools.product(*cuts)
