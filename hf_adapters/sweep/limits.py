"""How many workers fit in this machine, and how much memory a worker and its children use."""

from __future__ import annotations

import os
from pathlib import Path

GIB = 1024**3
#: What one worker needs to be worth starting, in bytes: a BERT-large with its reference process takes 7 GiB.
COMFORTABLE_MEMORY = 8 * GIB
#: Share of the machine's memory that all workers together may use.
_SHARE = 0.85
_PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def cores() -> int:
    """Number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)


def total_memory() -> int:
    """Physical memory of the machine in bytes, 0 when the system does not tell."""
    try:
        return _PAGE * int(os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, OSError, ValueError):
        return 0


def default_jobs(num_cores: int | None = None, memory: int | None = None) -> int:
    """Workers to start by default: one for each core, fewer when memory is short.

    Args:
        num_cores: cores to use; None asks the system.
        memory: physical memory in bytes; None asks the system, 0 means unknown (then cores decide).
    """
    num_cores = cores() if num_cores is None else num_cores
    memory = total_memory() if memory is None else memory
    by_memory = num_cores if memory == 0 else max(1, memory // COMFORTABLE_MEMORY)
    return max(1, min(num_cores, by_memory))


def default_memory(jobs: int, memory: int | None = None) -> int:
    """Resident bytes that each of `jobs` workers may reach before it is killed.

    Args:
        jobs: number of workers.
        memory: physical memory in bytes; None asks the system, 0 means unknown.
    """
    memory = total_memory() if memory is None else memory
    return int(_SHARE * memory) // jobs if memory else COMFORTABLE_MEMORY


def threads_per_worker(jobs: int) -> int:
    """Threads that torch gets in each of `jobs` workers, so that all together fill the cores once."""
    return max(1, cores() // max(1, jobs))


def tree_rss(pid: int) -> int:
    """Resident bytes of a process and its descendants; 0 where /proc does not exist or the process is gone."""
    total, stack = 0, [pid]
    while stack:
        current = stack.pop()
        proc = Path("/proc") / str(current)
        try:
            total += _PAGE * int((proc / "statm").read_text().split()[1])
            stack.extend(
                int(child) for task in (proc / "task").iterdir() for child in (task / "children").read_text().split()
            )
        except (OSError, ValueError, IndexError):
            continue
    return total


def parse_size(text: str) -> int:
    """Bytes in a size such as "8G", "512M" or "8.5GiB"; a bare number is GiB.

    Raises:
        ValueError: the text is no positive size.
    """
    raw = text.strip().upper().removesuffix("IB").removesuffix("B")
    units = {"K": 1024, "M": 1024**2, "G": GIB, "T": 1024 * GIB}
    factor = units.get(raw[-1:], 0)
    number = raw[:-1] if factor else raw
    try:
        size = int(float(number) * (factor or GIB))
    except (ValueError, OverflowError):
        size = 0
    if size <= 0:
        raise ValueError(f"{text!r} is no size of memory: write for example 8G or 512M")
    return size
