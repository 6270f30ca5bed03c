"""Dynamo's view of the device: streams, events and properties it may trace through."""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface


def _module() -> Any:
    return torch.spyre  # type: ignore[attr-defined]


class SpyreInterface(DeviceInterface):
    """Maps Dynamo's device interface to ``torch.spyre``."""

    class Worker:
        """Properties asked for by compile workers."""

        @staticmethod
        def set_device(device: int) -> None:
            _module().set_device(device)

        @staticmethod
        def current_device() -> int:
            return int(_module().current_device())

        @staticmethod
        def get_device_properties(device: Any = None) -> Any:
            return SpyreInterface.get_device_properties(device)

    @staticmethod
    def current_device() -> int:
        return int(_module().current_device())

    @staticmethod
    def set_device(device: Any) -> None:
        _module().set_device(device)

    @staticmethod
    def device_count() -> int:
        return int(_module().device_count())

    @staticmethod
    def is_available() -> bool:
        return bool(_module().is_available())

    @staticmethod
    def current_stream(device: Any = None) -> Any:
        return _module().current_stream(device)

    @staticmethod
    def synchronize(device: Any = None) -> None:
        _module().synchronize(device)

    @staticmethod
    def get_device_properties(device: Any = None) -> Any:
        """Cores and memory, under the names Inductor reads."""
        from types import SimpleNamespace

        from spyre_backend import capabilities

        limits = capabilities.current().limits
        return SimpleNamespace(
            multi_processor_count=limits.num_cores, total_memory=limits.dram_bytes, name="spyre", type="spyre"
        )

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return "spyre"

    @staticmethod
    def is_bf16_supported(including_emulation: bool = False) -> bool:
        """bf16 is held as DL16 (D1.6)."""
        return True

    @staticmethod
    def is_dtype_supported(dtype: torch.dtype, including_emulation: bool = False) -> bool:
        """float64 and complex are refused (D1.6)."""
        return dtype is not torch.float64 and not dtype.is_complex

    @staticmethod
    def maybe_exchange_device(device: int) -> int:
        return device

    @staticmethod
    def exchange_device(device: int) -> int:
        return device

    @staticmethod
    def is_triton_capable(device: Any = None) -> bool:
        return False

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return 0
