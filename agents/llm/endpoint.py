"""Ask the endpoint: streaming, retries on named errors, limits."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from hf_adapters.agents.llm.errors import ContextOverflow, EndpointDown, EndpointError
from hf_adapters.agents.llm.reply import Reply, collect, whole
from hf_adapters.agents.llm.settings import EndpointSettings

Message = dict[str, Any]

_PASSING = (
    openai.RateLimitError,
    openai.APIConnectionError,
    openai.InternalServerError,
    openai.ConflictError,
    openai.APIResponseValidationError,
    httpx2.HTTPError,
    httpx2.StreamError,
    json.JSONDecodeError,
    UnicodeDecodeError,
)
"""Errors after which the same question may be answered."""

_LONGEST_WAIT = 60.0
_OVERFLOW = "context_length_exceeded"
_NO_MONEY = "insufficient_quota"
_OPTIONAL = ("max_tokens", "max_completion_tokens", "stream_options")
"""Parameters that not every endpoint takes."""


_MOST_BYTES = 32 * 2**20
"""Of one answer, events and all: far more than the tokens that are asked for."""


class _Bounded(httpx2.SyncByteStream):
    """The bytes of an answer, up to a number and a time: what never ends a line or an event never reaches `collect`."""

    def __init__(self, inner: httpx2.SyncByteStream, deadline: float) -> None:
        self.inner, self.deadline = inner, deadline

    def __iter__(self) -> Iterator[bytes]:
        count = 0
        for part in self.inner:
            count += len(part)
            if count > _MOST_BYTES:
                raise httpx2.ReadError(f"the answer has more than {_MOST_BYTES:,} bytes")
            if time.monotonic() > self.deadline:
                raise httpx2.ReadTimeout("the answer does not end")
            yield part

    def close(self) -> None:
        """See `SyncByteStream`."""
        self.inner.close()


def _client(settings: EndpointSettings) -> openai.OpenAI:
    def bound(response: httpx2.Response) -> None:
        if response.headers.get("content-encoding", "identity").lower() not in ("", "identity"):
            # A few kilobytes can hold gigabytes.
            raise httpx2.DecodingError("the answer is compressed, which was not asked for")
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _Bounded(response.stream, time.monotonic() + settings.answer_seconds)

    return openai.OpenAI(
        api_key=settings.api_key,
        base_url=settings.base_url,
        timeout=httpx2.Timeout(settings.read_seconds, connect=10.0),
        max_retries=0,
        default_headers={"Accept-Encoding": "identity"},
        http_client=openai.DefaultHttpxClient(event_hooks={"response": [bound]}),
    )


@dataclass
class Endpoint:
    """One endpoint; keeps no state between questions.

    Attributes:
        settings: see the class.
        sleep: waits; tests do not.
        note: told about every failed try, in words.
    """

    settings: EndpointSettings
    sleep: Callable[[float], None] = time.sleep
    note: Callable[[str], None] = lambda _: None
    client: openai.OpenAI = field(init=False, repr=False)
    unknown: set[str] = field(default_factory=set)
    """Parameters that this endpoint does not take."""

    def __post_init__(self) -> None:
        self.client = _client(self.settings)

    def ask(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], *, output: int, deadline: float
    ) -> Reply:
        """One answer.

        Args:
            messages: the conversation.
            tools: what the model may call.
            output: most tokens of the answer.
            deadline: `time.monotonic()` at which nothing is asked any more.

        Raises:
            ContextOverflow: the conversation is too long.
            EndpointError: the key, the model or the address is wrong.
            EndpointDown: no usable answer in as many tries as are allowed, or before the deadline.
        """
        last = ""
        for number in range(1, self.settings.tries + 1):
            try:
                reply = self._once(messages, tools, output, deadline)
                if _complete(reply) or (number == self.settings.tries and not reply.empty):
                    return reply
                wait, last = None, "its answers are empty or break off"
            except openai.APIStatusError as error:
                wait = _wait(error) if isinstance(error, _PASSING) else None
                self._raise_for_good(error)
                last = _describe(error)
            except (*_PASSING, openai.APIError) as error:
                wait, last = None, _describe(error)
            self.note(f"try {number}: {last}")
            pause = min(wait if wait is not None else 2.0 ** (number - 1) * (0.5 + random.random()), _LONGEST_WAIT)
            if number == self.settings.tries or time.monotonic() + pause > deadline:
                break
            self.sleep(pause)
        raise EndpointDown(f"{self._where()} gave no usable answer: {last}; hf-adapters agent resume goes on later")

    def _once(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], output: int, deadline: float
    ) -> Reply:
        arguments: dict[str, Any] = {"max_tokens": output, "stream_options": {"include_usage": True}}
        if "max_tokens" in self.unknown:
            arguments["max_completion_tokens"] = arguments.pop("max_tokens")
        arguments = {name: value for name, value in arguments.items() if name not in self.unknown}
        create: Any = self.client.chat.completions.create
        with create(
            model=self.settings.model, messages=list(messages), tools=list(tools), stream=True, **arguments
        ) as stream:
            until = min(deadline, time.monotonic() + self.settings.answer_seconds)
            if "json" in stream.response.headers.get("content-type", ""):
                return whole(json.loads(stream.response.read()))
            return collect(stream, until)

    def _raise_for_good(self, error: openai.APIStatusError) -> None:
        """Raise what trying again cannot mend."""
        if error.code == _OVERFLOW or error.status_code == 413:
            raise ContextOverflow(_describe(error)) from error
        if error.code == _NO_MONEY:
            raise EndpointError(f"{self._where()}: the account has no credit left ({_describe(error)})") from error
        if error.param in _OPTIONAL and error.param not in self.unknown:
            self.unknown.add(error.param)
            return
        if isinstance(error, _PASSING) or error.status_code >= 500:
            return
        raise EndpointError(f"{self._where()} refuses the request: {_describe(error)}") from error

    def _where(self) -> str:
        return f"the endpoint {self.client.base_url} (model {self.settings.model})"


def _complete(reply: Reply) -> bool:
    """Whether the stream came to its end: it says so, or it holds a call, which shows by itself when it is cut off."""
    return bool(reply.finish or reply.calls)


def _wait(error: openai.APIStatusError) -> float | None:
    """Seconds that the endpoint asks to wait."""
    try:
        seconds = float(error.response.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < 3600 else None


def _describe(error: BaseException) -> str:
    status = f" {error.status_code}" if isinstance(error, openai.APIStatusError) else ""
    return f"{type(error).__name__}{status}: {' '.join(str(error).split())[:300]}"
