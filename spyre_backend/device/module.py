"""`torch.spyre`: the functions that PyTorch and users call on the device."""

from __future__ import annotations

from types import TracebackType
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
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_peak_memory_stats,
)
from spyre_backend.device.random import (
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    set_rng_state,
)
from spyre_backend.device.streams import (
    Event,
    Stream,
    current_stream,
    default_stream,
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
    "empty_cache",
    "fallback_counts",
    "get_amp_supported_dtype",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "launch_count",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_fallback_counts",
    "reset_launch_count",
    "reset_peak_memory_stats",
    "seed",
    "set_device",
    "set_rng_state",
    "set_stream",
    "stream",
    "synchronize",
]

_DeviceLike = torch.device | str | int | None


def is_available() -> bool:
    """Whether a device can be used; the emulated one always can."""
    return True


def device_count() -> int:
    """Number of devices: one for each process (D3.1)."""
    return 1


def current_device() -> int:
    """Index of the current device."""
    return 0


def set_device(device: _DeviceLike) -> None:
    """Selects the current device; only index 0 exists.

    Raises:
        ValueError: The index is not 0.
    """
    _index(device)


def is_initialized() -> bool:
    """Whether this process has used the device."""
    return bool(_C.is_initialised())


def init() -> None:
    """Starts the runtime; every use of the device does so by itself."""
    _C.initialise()


_lazy_init = init


def _is_in_bad_fork() -> bool:
    return bool(_C.in_bad_fork())


def synchronize(device: _DeviceLike = None) -> None:
    """Waits until every stream of the device is idle.

    Raises:
        ValueError: The index is not 0.
        RuntimeError: The process was forked after the device had been used.
    """
    _index(device)
    _C.initialise()


def get_device_name(device: _DeviceLike = None) -> str:
    """Name of the device."""
    _index(device)
    return "IBM Spyre (emulated)"


def get_device_properties(device: _DeviceLike = None) -> dict[str, Any]:
    """Properties of the device: name, `total_memory` in bytes, cores (D1.1)."""
    return {
        "name": get_device_name(device),
        "total_memory": memory_stats()["limit_bytes"],
        "multi_processor_count": 32,
    }


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that autocast may choose."""
    return [torch.float16, torch.bfloat16]


def is_bf16_supported() -> bool:
    """bfloat16 tensors are accepted and held as DL16 (D1.6)."""
    return True


class device:
    """Context manager that selects a device, as `torch.cuda.device` does."""

    def __init__(self, device: _DeviceLike) -> None:
        self.idx = _index(device)

    def __enter__(self) -> device:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


def _index(device: _DeviceLike) -> int:
    if device is None:
        return 0
    if isinstance(device, int):
        index = device
    else:
        chosen = torch.device(device)
        if chosen.type != "spyre":
            raise ValueError(f"expected a spyre device, got {chosen}")
        index = chosen.index or 0
    if index not in (0, -1):
        raise ValueError(f"invalid device index {index}: this process has one device, spyre:0")
    return 0
