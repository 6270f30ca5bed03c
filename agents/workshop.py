"""What the steps of the graph work with; nothing of it travels in the state."""

from __future__ import annotations

import difflib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_adapters.agents.bounds import Bounds
from hf_adapters.agents.portfolio import Portfolio
from hf_adapters.agents.protocol import Cost, Drafter, Rejection, Stage
from hf_adapters.agents.sandbox.run import Sandbox
from hf_adapters.agents.screening.declared import Drafted
from hf_adapters.agents.screening.policy import screen
from hf_adapters.agents.state import CaseState
from hf_adapters.store.agent_records import StoredAttempt
from hf_adapters.store.agents import AgentStore

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """One process's means.

    Attributes:
        agents: the tables.
        portfolio: the models.
        drafter: who proposes.
        sandbox: where proposals run.
        bounds: how much a case may use.
        repository: where approved adapters land; None refuses to land.
        folder: where reproducers are saved; None saves none.
        say: told about each step, in words.
    """

    agents: AgentStore
    portfolio: Portfolio
    drafter: Drafter
    sandbox: Sandbox = field(default_factory=Sandbox)
    bounds: Bounds = field(default_factory=Bounds)
    repository: Path | None = None
    folder: Path | None = None
    say: Say = lambda _: None

    def attempt(self, state: CaseState) -> StoredAttempt:
        """The row of the current attempt."""
        return next(a for a in self.agents.attempts(state["case_id"]) if a.number == state["attempt"])

    def drafted(self, state: CaseState) -> Drafted:
        """The current attempt's draft, which passed the screen."""
        return drafted(self.attempt(state))

    def parts(self, state: CaseState) -> tuple[Drafted, ...]:
        """Earlier drafts of the case, which are proven for their own modules."""
        numbers = state.get("parts", [])
        return tuple(drafted(a) for a in self.agents.attempts(state["case_id"]) if a.number in numbers)

    def rejections(self, case_id: int, after: int = 0) -> tuple[Rejection, ...]:
        """What was said against the attempts after the one of this number, oldest first."""
        rows = (a for a in self.agents.attempts(case_id) if a.outcome == "rejected" and a.number > after)
        return tuple(
            Rejection(attempt=a.number, stage=a.stage, reason=a.reason, source=a.source)  # type: ignore[arg-type]
            for a in rows
        )

    def reject(
        self, state: CaseState, stage: Stage, reason: str, metrics: Mapping[str, Any] | None = None
    ) -> CaseState:
        """Note that the current attempt was stopped; the graph goes on to the next one."""
        self._note(state, {"outcome": "rejected", "stage": stage, "reason": reason}, metrics)
        self.say(f"rejected at {stage}: {reason.splitlines()[0] if reason else ''}")
        return {"proven": False}

    def reject_all(
        self, state: CaseState, stage: Stage, reason: str, metrics: Mapping[str, Any] | None = None
    ) -> CaseState:
        """Note that the drafts of a case were stopped together; it starts again at the place that failed first."""
        found = self.reject(state, stage, reason, metrics)
        for number in state.get("parts", []):
            values = {"outcome": "rejected", "stage": stage, "reason": f"with attempt {state['attempt']}: {reason}"}
            self.agents.update_attempt(state["case_id"], number, **values)
        solved = state.get("solved", [])
        return {**found, "parts": [], "solved": [], "failure": solved[0] if solved else state["failure"]}

    def passed(
        self, state: CaseState, stage: Stage, reason: str, metrics: Mapping[str, Any] | None = None
    ) -> CaseState:
        """Note that the current attempt passed a gate."""
        self._note(state, {"stage": stage, "reason": reason}, metrics)
        self.say(f"{stage}: {reason}")
        return {"proven": True}

    def _note(self, state: CaseState, values: dict[str, Any], metrics: Mapping[str, Any] | None) -> None:
        if metrics:
            values["metrics"] = {**self.attempt(state).metrics, **metrics}
        self.agents.update_attempt(state["case_id"], state["attempt"], **values)

    @contextmanager
    def timed(self, state: CaseState) -> Iterator[None]:
        """Count the wall-clock time of the block as the current attempt's."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.agents.spend(state["case_id"], state["attempt"], seconds=time.monotonic() - started)


class StoreJournal:
    """A drafter's journal in the database: a killed attempt keeps its transcript and has been paid for."""

    def __init__(self, agents: AgentStore, case_id: int, number: int) -> None:
        self.agents, self.case_id, self.number = agents, case_id, number
        self.steps: list[Mapping[str, Any]] = []
        self.spent = Cost()

    def entry(self, step: Mapping[str, Any]) -> None:
        """See `Journal`."""
        self.steps.append(dict(step))
        self.agents.update_attempt(self.case_id, self.number, transcript=self.steps)

    def spend(self, cost: Cost) -> None:
        """See `Journal`."""
        self.spent += cost
        self.agents.spend(self.case_id, self.number, tokens_in=cost.tokens_in, tokens_out=cost.tokens_out, usd=cost.usd)


def drafted(attempt: StoredAttempt) -> Drafted:
    """The draft of an attempt that passed the screen."""
    adapter = screen(attempt.source).adapter
    assert adapter is not None, "a draft that was screened declares its adapter"
    return Drafted(adapter=adapter, source=attempt.source)


def diff(before: str, after: str) -> str:
    """Unified diff of two drafts; empty when there is none before."""
    if not before:
        return ""
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), "before", "after", n=3)
    return "".join(lines)
