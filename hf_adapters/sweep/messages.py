"""What travels between the supervisor and a worker: one JSON object in each line."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One structure to judge: everything a worker needs, as plain data.

    Attributes:
        key: structural signature.
        label: what people read while it runs, such as a profile id.
        payload: passed to the work function as it is.
    """

    key: str
    label: str
    payload: Json = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a task.

    Attributes:
        kind: "done" (the work function returned), "failed" (it raised), "crashed" (the process died twice), "memory"
            (killed at the memory limit) or "timed-out".
        result: the evidence that the work function returned; empty unless kind is "done".
        reason: one sentence for people when kind is not "done".
        detail: last lines of what the worker wrote, for people who debug.
        attempts: how many processes tried it.
        seconds: wall-clock time of the last attempt.
        peak_rss: largest resident size seen, in bytes, of the worker and its children.
    """

    kind: str
    result: Json = field(default_factory=dict)
    reason: str = ""
    detail: str = ""
    attempts: int = 1
    seconds: float = 0.0
    peak_rss: int = 0


def encode(message: Json) -> bytes:
    """One line of JSON; values that JSON lacks (NaN) are refused, so that a result cannot be misread later."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False, default=_plain).encode() + b"\n"


def decode(line: bytes) -> Json:
    """The object in a line written by `encode`."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise TypeError(f"expected an object, got {type(message).__name__}")
    return message


def finite(value: Any) -> Any:
    """Copy of a JSON-like value in which NaN and infinities are None, tuples are lists and keys are strings."""
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [finite(item) for item in value]
    return value


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return finite(dataclasses.asdict(value))
    return str(value)
