"""The drafter `openai`: a conversation with tools that ends in a submitted adapter file."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hf_adapters.agents.llm.endpoint import Endpoint, Message
from hf_adapters.agents.llm.errors import ContextOverflow
from hf_adapters.agents.llm.reply import Reply
from hf_adapters.agents.llm.settings import EndpointSettings
from hf_adapters.agents.llm.tools import TOOLS, Submission, Toolbox
from hf_adapters.agents.prompts import fenced, prompt
from hf_adapters.agents.protocol import BudgetSpent, Cost, Draft, DraftTask, NoDraft

_CHARACTERS = 3
"""Characters of a token, for endpoints that do not count: an estimate on the safe side."""

_NUDGES = 3
_MOST_CALLS = 8
_KEPT = 6
"""Newest messages of which nothing is left out when the conversation gets too long."""

_SHORT = 150
"""Characters that stay of a result that is left out."""
_LEFT_OUT = "\n[left out: the conversation got too long; ask again]"

_QUOTED = 2000
"""Characters of arguments that are no JSON which the model sees again."""

_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_BLOCK = re.compile(r"^(`{3,})(?:python|py)?[ \t]*\n(.*?)^\1[ \t]*$", re.MULTILINE | re.DOTALL)
_NUDGE = "Answer with a tool call. If the adapter is ready, call submit with the whole file."
_AGAIN = (
    "The task is ordinary numerical programming: rewrite a module so that a compiler accepts it, with the same "
    "results. Answer with a tool call."
)


class OpenAIDrafter:
    """Asks one model at one endpoint."""

    def __init__(
        self,
        model: str | None = None,
        *,
        settings: EndpointSettings | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Take the endpoint from the environment unless settings are given.

        Raises:
            EndpointError: see `EndpointSettings.from_environment`.
        """
        self.settings = settings or EndpointSettings.from_environment(model)
        self.name = self.settings.model
        self._sleep = sleep

    def draft(self, task: DraftTask) -> Draft:
        """See `Drafter`.

        Raises:
            EndpointError: the endpoint cannot be used; nothing is lost, the case can be resumed.
        """
        endpoint = Endpoint(self.settings, sleep=self._sleep)
        conversation = _Conversation(task, endpoint)
        endpoint.note = lambda text: conversation.keep({"event": "endpoint", "text": text})
        submission = conversation.run()
        return Draft(
            source=submission.source,
            notes=submission.notes,
            cost=conversation.cost,
            transcript=conversation.transcript,
        )


@dataclass
class _Conversation:
    """One attempt."""

    task: DraftTask
    endpoint: Endpoint
    messages: list[Message] = field(default_factory=list)
    transcript: list[dict[str, Any]] = field(default_factory=list)
    cost: Cost = field(default_factory=Cost)
    started: float = field(default_factory=time.monotonic)
    nudges: int = 0
    refusals: int = 0

    def run(self) -> Submission:
        """Talk until something is submitted."""
        self._say({"role": "system", "content": prompt("system")})
        self._say({"role": "user", "content": task_text(self.task)})
        toolbox = Toolbox(self.task.workbench)
        for _ in range(self.endpoint.settings.turns):
            reply = self._ask()
            submission = self._take(reply, toolbox)
            if submission is not None:
                return submission
        raise NoDraft(f"nothing was submitted in {self.endpoint.settings.turns} answers")

    def keep(self, step: dict[str, Any]) -> None:
        """Append to the transcript, here and in the journal."""
        self.transcript.append(step)
        self.task.journal.entry(step)

    def _say(self, message: Message) -> None:
        self.messages.append(message)
        self.keep({"event": "message", **message})

    # -- asking

    def _ask(self) -> Reply:
        settings, allowance = self.endpoint.settings, self.task.allowance
        deadline = self.started + allowance.seconds
        while True:
            expected = _estimate(self.messages)
            left = allowance.tokens - self.cost.tokens - expected
            if left <= 0:
                raise BudgetSpent(f"the next question takes about {expected:,} tokens, more than are left")
            if self.cost.usd + settings.price(expected, 0) >= allowance.usd:
                raise BudgetSpent(f"${self.cost.usd:.2f} are spent, and the next question costs more than is left")
            if time.monotonic() >= deadline:
                raise BudgetSpent("the time is used up")
            output = min(settings.output, left, _affordable(settings, allowance.usd - self.cost.usd, expected))
            if expected > settings.context and self._shorten():
                continue
            try:
                reply = self.endpoint.ask(self.messages, TOOLS, output=max(1, output), deadline=deadline)
            except ContextOverflow:
                self._spend(expected, 0)
                if not self._shorten():
                    raise NoDraft("the task alone is longer than the model can read") from None
                continue
            self._count(reply, expected)
            return reply

    def _count(self, reply: Reply, expected: int) -> None:
        written = -(-reply.characters // _CHARACTERS)
        tokens_in = expected if reply.tokens_in is None else reply.tokens_in
        self._spend(tokens_in, written if reply.tokens_out is None else reply.tokens_out)

    def _spend(self, tokens_in: int, tokens_out: int) -> None:
        usd = self.endpoint.settings.price(tokens_in, tokens_out)
        spent = Cost(tokens_in=tokens_in, tokens_out=tokens_out, usd=usd)
        self.cost += spent
        self.task.journal.spend(spent)

    def _shorten(self) -> bool:
        """Leave out the longest old result of a tool; False when there is none left."""
        results = [m for m in self.messages[2:] if m["role"] == "tool" and len(m["content"]) > _SHORT + len(_LEFT_OUT)]
        old = [m for m in results if m in self.messages[:-_KEPT]] or results
        if not old:
            return False
        longest = max(old, key=lambda m: len(m["content"]))
        longest["content"] = longest["content"][:_SHORT] + _LEFT_OUT
        self.keep({"event": "shortened"})
        return True

    # -- taking an answer

    def _take(self, reply: Reply, toolbox: Toolbox) -> Submission | None:
        if reply.refusal or reply.finish == "content_filter":
            self._refused(reply)
            return None
        if not reply.calls:
            return self._talked(reply)
        self._say(_as_message(reply))
        for number, call in enumerate(reply.calls):
            if number >= _MOST_CALLS:
                result = f"error: more than {_MOST_CALLS} calls in one answer; this one was not carried out"
            elif reply.finish in ("length", "cut") and call is reply.calls[-1]:
                result = "error: the answer was cut off; write less, or split it"
            else:
                result = toolbox.answer(call)
            self._say({"role": "tool", "tool_call_id": call.id, "content": result})
            if toolbox.submission is not None:
                return toolbox.submission
        return None

    def _refused(self, reply: Reply) -> None:
        self.refusals += 1
        said = reply.refusal or reply.text or "the endpoint's filter"
        self.keep({"event": "refusal", "text": said[:2000]})
        if self.refusals > 1:
            raise NoDraft(f"{self.endpoint.settings.model} refuses: {' '.join(said.split())[:300]}")
        self._say({"role": "user", "content": _AGAIN})

    def _talked(self, reply: Reply) -> Submission | None:
        """Text instead of a call: a whole adapter file in it counts, anything else gets a reminder."""
        self._say({"role": "assistant", "content": reply.text[:20_000] or "(nothing)"})
        blocks = [found.group(2) for found in _BLOCK.finditer(reply.text) if "ADAPTER = Adapter(" in found.group(2)]
        if blocks:
            return Submission(source=blocks[-1], notes="handed in as text")
        self.nudges += 1
        if self.nudges > _NUDGES:
            raise NoDraft(f"{self.endpoint.settings.model} talks instead of calling a tool")
        self._say({"role": "user", "content": _NUDGE})
        return None


def _as_message(reply: Reply) -> Message:
    """The answer as part of the conversation; strict endpoints refuse names and arguments that are none."""
    calls = [
        {"id": c.id, "type": "function", "function": {"name": _name(c.name), "arguments": _object(c.arguments)}}
        for c in reply.calls
    ]
    return {"role": "assistant", "content": reply.text or None, "tool_calls": calls}


def _name(name: str) -> str:
    return _NO_NAME.sub("_", name)[:64] or "unknown"


def _object(arguments: str) -> str:
    """Arguments that are a JSON object, or an object that quotes them."""
    try:
        given = json.loads(arguments)
    except (json.JSONDecodeError, RecursionError):
        given = None
    return arguments if isinstance(given, dict) else json.dumps({"not an object": arguments[:_QUOTED]})


def _estimate(messages: list[Message]) -> int:
    """Tokens of a conversation, on the safe side."""
    return sum(len(str(message)) for message in messages) // _CHARACTERS + len(str(TOOLS)) // _CHARACTERS


def _affordable(settings: EndpointSettings, usd: float, expected: int) -> int:
    if settings.price_out <= 0:
        return settings.output
    return int((usd - settings.price(expected, 0)) / settings.price_out * 1e6)


def task_text(task: DraftTask) -> str:
    """The task as the model reads it; what comes from elsewhere is fenced."""
    said, failure = task.failure.diagnosis, task.failure
    operands = "\n".join(f"- {o.name}: {o.dtype}{list(o.shape)}" for o in failure.operands) or "- none"
    return prompt("task").format(
        release=task.release,
        kind=said.kind,
        message=fenced(said.message),
        op=said.op or "unknown",
        rule=said.rule or "none",
        title=said.rule_title or "",
        hint=said.hint or "none",
        path=failure.path or "(the model)",
        module=failure.module,
        operands=operands,
        source=fenced(failure.source, "python"),
        rejections=_history(task),
        attempt=task.attempt,
        tokens=f"{task.allowance.tokens:,}",
    )


def _history(task: DraftTask) -> str:
    """What was drafted before, and what was said against it."""
    parts = []
    if task.earlier:
        parts.append(
            "Drafted before for other failing modules of this model, and applied together with your adapter, "
            f"which needs another name: {', '.join(task.earlier)}."
        )
    for rejection in task.rejections[-3:]:
        parts.append(f"Attempt {rejection.attempt} was rejected at {rejection.stage}:\n{fenced(rejection.reason)}")
        if rejection.source:
            parts.append(f"It was:\n{fenced(rejection.source, 'python')}")
    return "\n\n".join(parts)
