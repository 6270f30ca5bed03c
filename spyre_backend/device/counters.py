"""What ran where: CPU fallbacks and device launches of this process."""

from __future__ import annotations

from spyre_backend import _C

__all__ = ["fallback_counts", "launch_count", "reset_fallback_counts", "reset_launch_count"]


def fallback_counts() -> dict[tuple[str, str], int]:
    """Calls that ran on the CPU although their tensors are on the device.

    Returns:
        Counts by `(op, category)`. `op` is written as torch prints it, such as
        `aten.erf.default`. The category is `lookup` (rows of a table read by
        integer index), `integer` (every tensor that went in or came out is
        integer or bool) or `compute` (anything else).
    """
    return {(op, category): count for op, category, count in _C.fallback_counts()}


def reset_fallback_counts() -> None:
    """Forgets the counted fallbacks; each op still warns only once a process."""
    _C.reset_fallback_counts()


def launch_count() -> int:
    """Number of compiled programs launched since the last reset."""
    return int(_C.launch_count())


def reset_launch_count() -> None:
    """Starts counting launches from zero."""
    _C.reset_launch_count()
