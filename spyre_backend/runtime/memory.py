"""Access to device memory from the runtime.

The address that a device tensor carries cannot be read by the host at all. The
runtime reads and writes the same memory through a second mapping, which
:func:`host_view` hands out while :class:`device_access` is entered. With
`SPYRE_BACKEND_STRICT_MEMORY=1` that mapping, too, loses its access rights
outside of `device_access`, so that a view kept too long faults.
"""

from __future__ import annotations

from types import TracebackType

import torch

from spyre_backend import _C

__all__ = ["device_access", "host_view", "mark_written", "write_generation"]


class device_access:
    """Context manager that opens device memory; re-entrant and thread-safe."""

    __slots__ = ()

    def __enter__(self) -> device_access:
        _C.open_memory()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _C.close_memory()


def host_view(tensor: torch.Tensor, *, write: bool = True) -> torch.Tensor:
    """Returns a zero-copy CPU tensor over a device tensor's memory.

    Args:
        tensor: A tensor on `spyre`, with any strides and storage offset.
        write: Whether the caller may write through the view; the allocation
            then gets a new write generation. Who writes through a view made
            with `write=False`, or after others have read, calls
            :func:`mark_written`.

    Returns:
        A CPU tensor of the same size, stride and offset. float16 and bfloat16
        appear as int16 DL16 codes (D1.5), other dtypes as themselves. It keeps
        the memory alive, but may only be used inside `device_access()`.

    Raises:
        RuntimeError: The tensor is not on `spyre`, or memory is not open.
    """
    return _C.host_view(tensor, write)


def write_generation(tensor: torch.Tensor) -> int:
    """A number that changes with every write to the tensor's allocation.

    No two allocations ever share one, so values read from device memory can be
    kept under (address, generation). 0 for a tensor without memory.
    """
    return _C.write_generation(tensor)


def mark_written(tensor: torch.Tensor) -> None:
    """Gives the tensor's allocation a new write generation."""
    _C.mark_written(tensor)
