"""One answer of a language model, put together from a stream whose pieces may be odd."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST = 400_000
"""Characters of an answer after which it is cut: a model that rambles is not listened to for ever."""

_MOST_CALLS = 32
_MOST_TOKENS = 10**8
"""What an endpoint counts beyond this is no count."""


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
        _usage(reply, _field(chunk, "usage"))
        for choice in _list(_field(chunk, "choices"))[:1]:
            _delta(reply, _field(choice, "delta"))
            reply.finish = _text(_field(choice, "finish_reason")) or reply.finish
        if reply.characters > LONGEST or time.monotonic() > deadline:
            reply.finish = "cut"
            break
    _name_calls(reply)
    return reply


def whole(body: Any) -> Reply:
    """An answer in one piece, from an endpoint that does not stream."""
    reply = Reply()
    _usage(reply, _field(body, "usage"))
    for choice in _list(_field(body, "choices"))[:1]:
        _delta(reply, _field(choice, "message"))
        reply.finish = _text(_field(choice, "finish_reason")) or ("stop" if not reply.empty else "")
    _name_calls(reply)
    return reply


def _name_calls(reply: Reply) -> None:
    """Give each call an id of its own: results are told apart by nothing else."""
    taken: set[str] = set()
    for number, call in enumerate(reply.calls):
        if not call.id or call.id in taken:
            call.id = f"call_{number}"
        taken.add(call.id)


def _delta(reply: Reply, delta: Any) -> None:
    reply.text += _content(_field(delta, "content"))
    reply.refusal += _text(_field(delta, "refusal"))
    for piece in _list(_field(delta, "tool_calls")):
        call = _call(reply, _field(piece, "index"), _text(_field(piece, "id")))
        if call is None:
            continue
        function = _field(piece, "function")
        name = _text(_field(function, "name"))
        # Some endpoints repeat the whole name in every piece.
        call.name += "" if name == call.name else name
        arguments = _field(function, "arguments")
        call.arguments += json.dumps(arguments) if isinstance(arguments, dict) else _text(arguments)


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
        value = _field(usage, name)
        if type(value) is int and 0 <= value <= _MOST_TOKENS:
            setattr(reply, field_name, value)


def _field(owner: Any, name: str) -> Any:
    """A field of an object of the client, or of plain JSON; None where there is none."""
    return owner.get(name) if isinstance(owner, Mapping) else getattr(owner, name, None)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else []


def _content(value: Any) -> str:
    """Text, or a list of parts of which some are text."""
    return "".join(_text(_field(part, "text")) for part in value) if isinstance(value, list) else _text(value)


def _text(value: Any) -> str:
    """Text that can be sent and kept: no halves of characters, and no NUL, which PostgreSQL does not store."""
    return storable(value) if isinstance(value, str) else ""


def storable(text: str) -> str:
    """The text with a question mark for what is no character."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "?")
