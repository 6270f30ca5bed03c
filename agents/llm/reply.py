"""One answer of a language model, put together from a stream whose pieces may be odd."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

LONGEST = 400_000
"""Characters of an answer after which it is cut: a model that rambles is not listened to for ever."""

_MOST_CALLS = 32


@dataclass(slots=True)
class ToolCall:
    """A call that the model asks for; `arguments` is the text it wrote, JSON or not."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Reply:
    """What came back."""

    text: str = ""
    refusal: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    finish: str = ""
    """Why it ended: stop, tool_calls, length, content_filter, cut (here), or empty when the stream just stopped."""
    tokens_in: int | None = None
    """As the endpoint counts; None when it does not say."""
    tokens_out: int | None = None

    @property
    def characters(self) -> int:
        """Length of everything the model wrote."""
        return len(self.text) + len(self.refusal) + sum(len(c.name) + len(c.arguments) for c in self.calls)

    @property
    def empty(self) -> bool:
        """Whether nothing came."""
        return not (self.text or self.refusal or self.calls)


def collect(chunks: Iterable[Any], deadline: float) -> Reply:
    """Put a stream together.

    Args:
        chunks: chat completion chunks; unknown or missing fields are put up with.
        deadline: `time.monotonic()` after which the answer is cut.
    """
    reply = Reply()
    for chunk in chunks:
        _usage(reply, getattr(chunk, "usage", None))
        for choice in list(getattr(chunk, "choices", None) or ())[:1]:
            _delta(reply, getattr(choice, "delta", None))
            reply.finish = getattr(choice, "finish_reason", None) or reply.finish
        if reply.characters > LONGEST or time.monotonic() > deadline:
            reply.finish = "cut"
            break
    for number, call in enumerate(reply.calls):
        call.id = call.id or f"call_{number}"
    return reply


def _delta(reply: Reply, delta: Any) -> None:
    reply.text += _text(getattr(delta, "content", None))
    reply.refusal += _text(getattr(delta, "refusal", None))
    for piece in getattr(delta, "tool_calls", None) or ():
        call = _call(reply, getattr(piece, "index", None), _text(getattr(piece, "id", None)))
        if call is None:
            continue
        function = getattr(piece, "function", None)
        name = _text(getattr(function, "name", None))
        # Some endpoints repeat the whole name in every piece.
        call.name += "" if name == call.name else name
        call.arguments += _text(getattr(function, "arguments", None))


def _call(reply: Reply, index: Any, identity: str) -> ToolCall | None:
    """The call that a piece belongs to: by its index, else by its id, else the last one."""
    if not isinstance(index, int) or index < 0:
        known = [n for n, call in enumerate(reply.calls) if identity and call.id == identity]
        index = known[0] if known else len(reply.calls) if identity or not reply.calls else len(reply.calls) - 1
    if index >= _MOST_CALLS:
        return None
    while len(reply.calls) <= index:
        reply.calls.append(ToolCall())
    found: ToolCall = reply.calls[index]
    found.id = found.id or identity
    return found


def _usage(reply: Reply, usage: Any) -> None:
    for name, field_name in (("prompt_tokens", "tokens_in"), ("completion_tokens", "tokens_out")):
        value = getattr(usage, name, None)
        if isinstance(value, int) and value >= 0:
            setattr(reply, field_name, value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
