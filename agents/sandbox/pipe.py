"""Watch a sandboxed process and read its messages; what it writes is not trusted."""

from __future__ import annotations

import json
import os
import selectors
import struct
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hf_adapters.sweep.limits import GIB, tree_rss

_LARGEST_ANSWER = 2 * GIB
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class SandboxLimits:
    """Bounds of a sandboxed process; what exceeds one is killed."""

    start_seconds: float = 240.0
    """Wall-clock time until the model is built and the draft is about to be imported."""
    wall_seconds: float = 900.0
    """Wall-clock time from then on."""
    cpu_seconds: int = 1800
    memory: int = 8 * GIB
    """Resident bytes, and a third of the address space, most of which torch reserves and never uses."""
    file_bytes: int = GIB
    """Largest file in the sandbox's own temporary folder, which is memory."""
    open_files: int = 512

    def rlimits(self) -> dict[str, int]:
        """Names of `resource` -> bound."""
        return {
            "RLIMIT_AS": 3 * self.memory,
            "RLIMIT_CPU": self.cpu_seconds,
            "RLIMIT_FSIZE": self.file_bytes,
            "RLIMIT_NOFILE": self.open_files,
            "RLIMIT_CORE": 0,
        }


def follow(process: subprocess.Popen[bytes], reading: int, limits: SandboxLimits) -> tuple[str, dict[str, Any], bytes]:
    """Read messages until there is an answer, or a limit is passed: (kind, message, tensors)."""
    buffer = bytearray()
    ready = False
    deadline = time.monotonic() + limits.start_seconds
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            ended = False
            if selector.select(_POLL_SECONDS):
                ended = _read(reading, buffer)
            while (message := _next(buffer)) is not None:
                if message[0].get("event") != "ready":
                    return str(message[0].get("kind", "done")), *message
                ready, deadline = True, time.monotonic() + limits.wall_seconds
            if ended or len(buffer) > _LARGEST_ANSWER:
                return ("killed" if ready else "not started"), {}, b""
            if tree_rss(process.pid) > limits.memory:
                return "memory", {"reason": f"needs more than {limits.memory / GIB:.3g} GiB"}, b""
            if time.monotonic() > deadline:
                reason = f"no result within {limits.wall_seconds:g} s" if ready else "the model was not built in time"
                return ("timed-out" if ready else "not started"), {"reason": reason}, b""


class _Malformed(Exception):
    """What came through the pipe is no message: only code that got hold of the pipe can have written it."""


def _next(buffer: bytearray) -> tuple[dict[str, Any], bytes] | None:
    try:
        return _message(buffer)
    except _Malformed:
        return {"event": "failed", "kind": "error", "reason": "the process sent something that is no answer"}, b""


def _read(reading: int, buffer: bytearray) -> bool:
    """Append what has arrived; True at the end of the pipe."""
    with suppress(BlockingIOError):
        chunk = os.read(reading, 1 << 20)
        buffer += chunk
        return not chunk
    return False


def _message(buffer: bytearray) -> tuple[dict[str, Any], bytes] | None:
    """Take one complete message off the buffer."""
    if len(buffer) < 8:
        return None
    (length,) = struct.unpack_from("<Q", buffer)
    if length > _LARGEST_ANSWER:
        raise _Malformed
    if len(buffer) < 16 + length:
        return None
    (size,) = struct.unpack_from("<Q", buffer, 8 + length)
    if len(buffer) < 16 + length + size:
        return None
    try:
        message: Any = json.loads(bytes(buffer[8 : 8 + length]))
    except (ValueError, RecursionError):
        raise _Malformed from None
    blob = bytes(buffer[16 + length : 16 + length + size])
    del buffer[: 16 + length + size]
    return (message if isinstance(message, dict) else {}), blob
