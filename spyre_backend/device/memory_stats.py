"""Memory accounting of the devices, in bytes, with the names and keys of `torch.cuda`.

A live tensor counts what the card would reserve for its shape: whole 128-byte sticks (D2.2, D3.2), so a (1000, 1)
float16 column counts 128,000 bytes. Reserved bytes are regions of 12, 8 or 4 GB (D3.2), mapped but not taken from the
host until written.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from spyre_backend import _C
from spyre_backend.device.selection import DeviceLike, device_index

__all__ = [
    "empty_cache",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
]


def memory_stats(device: DeviceLike = None) -> OrderedDict[str, Any]:
    """Counters of the allocator, as `torch.cuda.memory_stats` names them.

    Returns:
        ``{name}.{all,large_pool,small_pool}.{current,peak,allocated,freed}`` for the numbers `allocation`, `segment`,
        `active` and `inactive_split` and the bytes `allocated_bytes`, `reserved_bytes`, `active_bytes`,
        `inactive_split_bytes` and `requested_bytes`; `num_alloc_retries`, `num_ooms` and more. Active memory is what
        live tensors and operations in flight use. Empty before the first use.

    Raises:
        ValueError: there is no such device.
    """
    return torch.accelerator.memory_stats(device_index(device))


def memory_allocated(device: DeviceLike = None) -> int:
    """Bytes of live tensors."""
    return int(memory_stats(device).get("allocated_bytes.all.current", 0))


def max_memory_allocated(device: DeviceLike = None) -> int:
    """Largest value of :func:`memory_allocated` since the last reset."""
    return int(memory_stats(device).get("allocated_bytes.all.peak", 0))


def memory_reserved(device: DeviceLike = None) -> int:
    """Bytes of mapped regions; pages are taken from the host when written."""
    return int(memory_stats(device).get("reserved_bytes.all.current", 0))


def max_memory_reserved(device: DeviceLike = None) -> int:
    """Largest value of :func:`memory_reserved` since the last reset."""
    return int(memory_stats(device).get("reserved_bytes.all.peak", 0))


def reset_peak_memory_stats(device: DeviceLike = None) -> None:
    """Sets the peaks to the current values."""
    torch.accelerator.reset_peak_memory_stats(device_index(device))


def reset_accumulated_memory_stats(device: DeviceLike = None) -> None:
    """Sets the numbers of allocations and frees made so far to zero."""
    torch.accelerator.reset_accumulated_memory_stats(device_index(device))


def mem_get_info(device: DeviceLike = None) -> tuple[int, int]:
    """Bytes of the device that no tensor takes, and its capacity (D1.2: 128 GB)."""
    _, free = _C.memory_room(device_index(device))
    return int(free), int(_C.memory_limit())


def empty_cache() -> None:
    """Gives regions that hold nothing back to the card, and the pages of other free blocks to the host."""
    _C.empty_cache()


_ROWS = (
    ("Allocated memory", "allocated_bytes", True),
    ("Active memory", "active_bytes", True),
    ("Requested memory", "requested_bytes", True),
    ("Reserved memory", "reserved_bytes", True),
    ("Non-releasable memory", "inactive_split_bytes", True),
    ("Allocations", "allocation", False),
    ("Active allocs", "active", False),
    ("Reserved segments", "segment", False),
    ("Non-releasable allocs", "inactive_split", False),
)
_COLUMNS = (("Cur Usage", "current"), ("Peak Usage", "peak"), ("Tot Alloc", "allocated"), ("Tot Freed", "freed"))


def memory_summary(device: DeviceLike = None, abbreviated: bool = False) -> str:
    """A printable table of :func:`memory_stats`.

    Args:
        device: The device, the current one by default.
        abbreviated: Without the rows of the large and the small pool (border: 1 MiB).
    """
    index = device_index(device)
    stats = memory_stats(index)
    largest, free = _C.memory_room(index)
    pools = (
        (("all", ""),)
        if abbreviated
        else (("all", ""), ("large_pool", "from large pool"), ("small_pool", "from small pool"))
    )
    rule = "|" + "=" * 75 + "|"
    head = "| Metric" + " " * 15 + "|" + "|".join(f" {title:<11}" for title, _ in _COLUMNS) + "|"
    lines = [
        rule,
        f"|{f'Spyre memory summary, device {index}':^75}|",
        f"|{_counts(stats):^75}|",
        rule,
        head,
    ]
    for title, key, is_bytes in _ROWS:
        lines.append("|" + "-" * 75 + "|")
        for pool, label in pools:
            cells = (stats.get(f"{key}.{pool}.{column}", 0) for _, column in _COLUMNS)
            text = "|".join(f" {_size(cell) if is_bytes else f'{cell}':>11}" for cell in cells)
            lines.append(f"| {label or title:<21}|{text}|")
    lines += [
        rule,
        f"|{f'largest free block {_size(largest)}, free {_size(free)} of {_size(_C.memory_limit())}':^75}|",
        rule,
    ]
    return "\n".join(lines)


def _counts(stats: OrderedDict[str, Any]) -> str:
    return f"OOMs: {stats.get('num_ooms', 0)}, allocations tried again: {stats.get('num_alloc_retries', 0)}"


def _size(count: int) -> str:
    value, units = float(count), iter(("B", "KiB", "MiB", "GiB"))
    unit = next(units)
    while value >= 10 * 1024 and unit != "GiB":
        value, unit = value / 1024, next(units)
    return f"{value:.0f} {unit}"
