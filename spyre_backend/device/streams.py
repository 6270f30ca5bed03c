"""Streams and events.

Work of a stream runs in order on a worker thread of its own; what several streams have ready goes to the cores by
priority. Ids and priorities follow the card (D3.3): 0 is the default stream, 1-32 have low and 33-64 high priority, and
the host-compute pool begins at 65 (``TORCH_SPYRE_NUM_HOST_COMPUTE_STREAMS``, default 4). Times are simulated, by the
same rule: cores that were busy take the highest priority among what is ready and interrupt nothing. What priorities do
on the card is not published (D8.6), so this rule is ours.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from spyre_backend import _C
from spyre_backend.device.selection import DeviceLike, device_index

__all__ = ["Event", "Stream", "current_stream", "default_stream", "host_compute_streams", "set_stream", "stream"]

_FIRST_HOST_STREAM = 65


class Stream(torch.Stream):
    """A queue of operations on a device.

    Args:
        device: The device, the current one by default.
        priority: 0 for low, -1 for high (D3.3). Others are refused, where torch.cuda takes the nearest.

    Raises:
        ValueError: The priority is neither.
    """

    def __new__(cls, device: DeviceLike = None, priority: int = 0, **kwargs: Any) -> Stream:
        """Make the stream; `kwargs` are those of `torch.Stream` for an existing id."""
        if "stream_id" in kwargs:
            return super().__new__(cls, **kwargs)
        return super().__new__(cls, device=torch.device("spyre", device_index(device)), priority=priority)

    @property
    def priority(self) -> int:
        """0 for a low-priority stream, -1 for a high-priority one."""
        return int(_C.stream_priority(self.stream_id))

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest priority: 0 and -1 (D3.3)."""
        return 0, -1


class _EventType(type):
    """torch.Event refuses subclasses of itself, so ours only look like a class."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == "spyre"


class Event(metaclass=_EventType):
    """A mark in a stream; calling this makes a `torch.Event` of the device.

    As with torch.cuda, an event may be recorded again, also while its first record is in flight: it moves, `query`,
    `synchronize` and `elapsed_time` mean the new mark, and a stream that already waits still waits for the earlier one.

    Args:
        enable_timing: Whether `elapsed_time` can be asked: milliseconds of simulated time.
        interprocess: Refused: device memory is not shared between processes, and no event is.

    Raises:
        ValueError: `interprocess` is asked for.
    """

    def __new__(cls, enable_timing: bool = False, device: DeviceLike = None, **options: Any) -> torch.Event:  # type: ignore[misc]
        """Make the event; `options` are those of `torch.Event`."""
        if options.get("interprocess"):
            raise ValueError("Spyre: events cannot be shared between processes; synchronize before the other is told")
        return torch.Event(device=torch.device("spyre", device_index(device)), enable_timing=enable_timing, **options)


def _wrap(raw: torch.Stream) -> Stream:
    return Stream(stream_id=raw.stream_id, device_index=raw.device_index, device_type=raw.device_type)


def current_stream(device: DeviceLike = None) -> Stream:
    """The stream that this thread's operations on a device are queued on."""
    return _wrap(torch.accelerator.current_stream(device_index(device)))


def default_stream(device: DeviceLike = None) -> Stream:
    """Stream 0 of a device."""
    raw = torch.accelerator.current_stream(device_index(device))
    return Stream(stream_id=0, device_index=raw.device_index, device_type=raw.device_type)


def host_compute_streams(device: DeviceLike = None) -> list[Stream]:
    """The streams of the host-compute pool of a device."""
    raw = torch.accelerator.current_stream(device_index(device))
    return [
        Stream(stream_id=_FIRST_HOST_STREAM + i, device_index=raw.device_index, device_type=raw.device_type)
        for i in range(_C.num_host_streams())
    ]


def set_stream(stream: torch.Stream | None) -> None:
    """Makes `stream` this thread's current stream of its device, and its device the current one; None changes nothing.

    Raises:
        TypeError: It is no stream.
        ValueError: It is no stream of a spyre device.
    """
    if stream is None:
        return
    if not isinstance(stream, torch.Stream):
        raise TypeError(f"expected a torch.spyre.Stream, got {type(stream).__name__}")
    if stream.device.type != "spyre":
        raise ValueError(f"expected a stream of a spyre device, got one of {stream.device}")
    torch.accelerator.set_stream(stream)


class stream:
    """Context manager that makes a stream, and its device, current; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self._stream = stream
        self._before: tuple[int, Stream] | None = None

    def __enter__(self) -> torch.Stream | None:
        if isinstance(self._stream, torch.Stream):
            self._before = _C.current_device(), current_stream(self._stream.device_index)
        set_stream(self._stream)
        return self._stream

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            device, before = self._before
            set_stream(before)
            _C.set_current_device(device)
