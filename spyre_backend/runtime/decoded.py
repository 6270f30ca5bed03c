"""Decoded inputs kept from launch to launch, so that weights are not decoded anew each time.

An entry is valid as long as the memory layer reports the same write generation for the allocation it came from.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from torch import Tensor

from spyre_backend.program import TensorSpec
from spyre_backend.runtime import memory

ENVIRONMENT_VARIABLE: Final = "SPYRE_DECODED_CACHE_MB"
_DEFAULT_MB: Final = 1024


@dataclass(frozen=True, slots=True)
class Source:
    """Which device memory was decoded, and the write generation of its allocation (0: no memory)."""

    address: int
    elements: int
    dtype: str
    generation: int

    @staticmethod
    def of(device: Tensor, spec: TensorSpec) -> Source:
        """The source behind a launch argument."""
        return Source(device.data_ptr(), spec.storage_elements, spec.dtype, memory.write_generation(device))


class DecodedCache:
    """Least recently used decoded tensors up to a number of bytes; safe to use from several threads."""

    def __init__(self, max_bytes: int) -> None:
        """A cache that holds at most `max_bytes` of decoded values (0 switches it off)."""
        self.max_bytes = max_bytes
        self._entries: OrderedDict[tuple[int, int, str], tuple[int, Tensor]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes held now."""
        return self._bytes

    def get(self, source: Source, decode: Callable[[], Tensor]) -> Tensor:
        """The decoded values of `source`; they are shared, so nobody may write to them."""
        if not source.generation or not self.max_bytes:
            return decode()
        key = (source.address, source.elements, source.dtype)
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None and entry[0] == source.generation:
                self._entries.move_to_end(key)
                return entry[1]
        values = decode()
        if values.nbytes <= self.max_bytes:
            self._put(key, source.generation, values)
        return values

    def _put(self, key: tuple[int, int, str], generation: int, values: Tensor) -> None:
        with self._lock:
            old = self._entries.pop(key, None)
            self._bytes += values.nbytes - (old[1].nbytes if old is not None else 0)
            self._entries[key] = (generation, values)
            while self._bytes > self.max_bytes:
                _, (_, dropped) = self._entries.popitem(last=False)
                self._bytes -= dropped.nbytes

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0


def _configured_bytes() -> int:
    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    try:
        return max(0, int(text)) * 2**20 if text else _DEFAULT_MB * 2**20
    except ValueError:
        raise ValueError(f"{ENVIRONMENT_VARIABLE}={text!r} is not a number of megabytes") from None


DECODED = DecodedCache(_configured_bytes())
"""The process-wide cache, sized by SPYRE_DECODED_CACHE_MB (default 1024)."""
