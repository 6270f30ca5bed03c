"""Memory accounting of the device, in bytes.

A live tensor counts what the card would reserve for its shape: whole 128-byte
sticks (D2.2, D3.2), so a (1000, 1) float16 column counts 128,000 bytes.
"""

from __future__ import annotations

from typing import Any

from spyre_backend import _C

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_peak_memory_stats",
]


def memory_stats(device: Any = None) -> dict[str, int]:
    """Counters of the allocator.

    Returns:
        `allocated_bytes.current` and `.peak`, `allocation.current`, `.peak`,
        `.allocated` and `.freed` (numbers of allocations),
        `reserved_bytes.current` (mapped address space) and `limit_bytes`.
    """
    return dict(_C.memory_stats())


def memory_allocated(device: Any = None) -> int:
    """Bytes of live tensors."""
    return memory_stats()["allocated_bytes.current"]


def max_memory_allocated(device: Any = None) -> int:
    """Largest value of :func:`memory_allocated` since the last reset."""
    return memory_stats()["allocated_bytes.peak"]


def memory_reserved(device: Any = None) -> int:
    """Bytes of mapped regions; pages are taken from the host when written."""
    return memory_stats()["reserved_bytes.current"]


def reset_peak_memory_stats(device: Any = None) -> None:
    """Sets the peaks to the current values."""
    _C.reset_peak_memory_stats()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the device."""
    stats = memory_stats()
    return stats["limit_bytes"] - stats["allocated_bytes.current"], stats["limit_bytes"]


def empty_cache() -> None:
    """Gives the pages of free blocks back to the host."""
    _C.empty_cache()
