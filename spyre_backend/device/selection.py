"""Which device: names, indices, the current one."""

from __future__ import annotations

from types import TracebackType

import torch

from spyre_backend import _C

__all__ = ["DeviceLike", "current_device", "device", "device_count", "device_index", "device_of", "set_device"]

DeviceLike = torch.device | str | int | None


def device_count() -> int:
    """Number of emulated devices of this process: ``SPYRE_DEVICES``, 1 by default (D3.1).

    Raises:
        RuntimeError: the variable is no number of devices.
    """
    return int(_C.device_count())


def current_device() -> int:
    """Index of this thread's current device."""
    return int(_C.current_device())


def set_device(device: DeviceLike) -> None:
    """Selects this thread's current device.

    Raises:
        ValueError: there is no such device.
    """
    _C.set_current_device(device_index(device))


def device_index(device: DeviceLike) -> int:
    """Index of `device`; the current one for None, ``"spyre"`` and -1.

    Raises:
        ValueError: it is no spyre device, or there is none with this index.
    """
    if device is None:
        return current_device()
    if isinstance(device, int):
        index = device
    else:
        chosen = torch.device(device)
        if chosen.type != "spyre":
            raise ValueError(f"expected a spyre device, got {chosen}")
        index = -1 if chosen.index is None else chosen.index
    if index == -1:
        return current_device()
    count = device_count()
    if not 0 <= index < count:
        known = "one device, spyre:0" if count == 1 else f"devices spyre:0 to spyre:{count - 1}"
        raise ValueError(f"invalid device index {index}: this process has {known} (SPYRE_DEVICES)")
    return index


class device:
    """Context manager that selects a device, as `torch.cuda.device` does; None changes nothing."""

    def __init__(self, device: DeviceLike) -> None:
        self.idx = -1 if device is None else device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> device:
        self.prev_idx = current_device()
        if self.idx >= 0:
            _C.set_current_device(self.idx)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.set_current_device(self.prev_idx)


class device_of(device):
    """Context manager that selects the device of a tensor; tensors elsewhere change nothing."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == "spyre" else None)
