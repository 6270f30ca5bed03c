"""Streams and events.

The emulator runs an operation to its end before the call returns, so streams
are always idle; ids and priorities follow the card (D3.3: 0 is the default
stream, 1-32 have low and 33-64 high priority).
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

__all__ = ["Event", "Stream", "current_stream", "default_stream", "set_stream", "stream"]

_HIGH_PRIORITY_FROM = 33


class Stream(torch.Stream):
    """A queue of operations on the device.

    Args:
        device: The device; only `spyre:0` exists.
        priority: 0 for low, negative for high.
    """

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        """Make the stream; `kwargs` are those of `torch.Stream` for an existing id."""
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=device or "spyre", priority=priority)

    @property
    def priority(self) -> int:
        """0 for a low-priority stream, -1 for a high-priority one."""
        return -1 if self.stream_id >= _HIGH_PRIORITY_FROM else 0


class _EventType(type):
    """torch.Event refuses subclasses of itself, so ours only look like a class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "spyre"


class Event(metaclass=_EventType):
    """A mark in a stream; calling this makes a `torch.Event` of the device.

    Args:
        enable_timing: Whether `elapsed_time` (in milliseconds) can be asked.
    """

    def __new__(cls, enable_timing: bool = False, **options: Any) -> torch.Event:  # type: ignore[misc]
        """Make the event; `options` are those of `torch.Event`."""
        return torch.Event(device="spyre", enable_timing=enable_timing, **options)


def _wrap(raw: torch.Stream) -> Stream:
    return Stream(stream_id=raw.stream_id, device_index=raw.device_index, device_type=raw.device_type)


def current_stream(device: Any = None) -> Stream:
    """The stream that operations of this thread are queued on."""
    return _wrap(torch.accelerator.current_stream())


def default_stream(device: Any = None) -> Stream:
    """Stream 0."""
    current = torch.accelerator.current_stream()
    return Stream(stream_id=0, device_index=0, device_type=current.device_type)


def set_stream(stream: torch.Stream) -> None:
    """Makes `stream` the current stream of this thread."""
    torch.accelerator.set_stream(stream)


class stream:
    """Context manager that makes a stream the current one; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream
        self._before: Stream | None = None

    def __enter__(self) -> torch.Stream | None:
        if self._stream is not None:
            self._before = current_stream()
            set_stream(self._stream)
        return self._stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            set_stream(self._before)
