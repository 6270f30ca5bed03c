"""`torch.spyre`: the functions that PyTorch and users call on the device."""

from __future__ import annotations

from typing import Any

import torch

from spyre_backend import _C
from spyre_backend.device.counters import (
    fallback_counts,
    launch_count,
    reset_fallback_counts,
    reset_launch_count,
)
from spyre_backend.device.memory_stats import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
)
from spyre_backend.device.random import (
    default_generator,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from spyre_backend.device.selection import (
    DeviceLike,
    current_device,
    device,
    device_count,
    device_index,
    device_of,
    set_device,
)
from spyre_backend.device.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
    host_compute_streams,
    set_stream,
    stream,
)

__all__ = [
    "Event",
    "Stream",
    "current_device",
    "current_stream",
    "default_generator",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "fallback_counts",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "host_compute_streams",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "launch_count",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_summary",
    "reset_accumulated_memory_stats",
    "reset_fallback_counts",
    "reset_launch_count",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_launch_blocking",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "stream",
    "synchronize",
]


def is_available() -> bool:
    """Whether a device can be used; the emulated one always can."""
    return True


def is_initialized() -> bool:
    """Whether this process has used the device."""
    return bool(_C.is_initialised())


def init() -> None:
    """Starts the runtime; every use of the device does so by itself."""
    _C.initialise()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return bool(_C.in_bad_fork())


def synchronize(device: DeviceLike = None) -> None:
    """Waits until every stream of the device is idle.

    Raises:
        ValueError: There is no such device.
        Exception: What failed on the device since the last synchronisation.
        RuntimeError: The process was forked after the device had been used.
    """
    index = device_index(device)
    _C.initialise()
    _C.synchronise(index)


def get_device_name(device: DeviceLike = None) -> str:
    """Name of the device."""
    device_index(device)
    return "IBM Spyre (emulated)"


def get_device_properties(device: DeviceLike = None) -> dict[str, Any]:
    """Properties of the device: name, `total_memory` in bytes, cores (D1.1)."""
    return {
        "name": get_device_name(device),
        "total_memory": int(_C.memory_limit()),
        "multi_processor_count": 32,
    }


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that autocast may choose."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """bfloat16 tensors are accepted and held as DL16 (D1.6)."""
    return True


def set_launch_blocking(blocking: bool) -> None:
    """Makes every operation end before its call returns, so that errors surface where they are made.

    ``SPYRE_LAUNCH_BLOCKING=1`` does so from the start.
    """
    _C.set_launch_blocking(blocking)
