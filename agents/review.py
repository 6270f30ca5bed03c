"""What a reviewer can do; the command line and a web page call the same functions.

A decision is a row first. Going on with the case (landing it, drafting again) is a second step, which a killed process
can repeat.
"""

from __future__ import annotations

from typing import Any

from hf_adapters.agents.evidence import summary
from hf_adapters.errors import HfAdaptersError
from hf_adapters.store.agent_records import StoredCase
from hf_adapters.store.agents import AgentStore


class NotWaiting(HfAdaptersError, ValueError):
    """The case does not wait for a decision."""

    code = "E_NOT_WAITING"


def waiting(agents: AgentStore) -> list[StoredCase]:
    """Cases that wait for a decision, newest first."""
    return agents.cases(state="waiting")


def show(agents: AgentStore, case_id: int) -> dict[str, Any]:
    """The evidence of a case as plain data.

    Raises:
        NoSuchRow: there is no such case.
    """
    return summary(agents, case_id)


def approve(agents: AgentStore, case_id: int, *, reviewer: str, text: str = "") -> None:
    """Accept the case's last draft.

    Raises:
        NoSuchRow: there is no such case.
        NotWaiting: it does not wait for a decision.
    """
    _decide(agents, case_id, reviewer, "approve", text)


def reject(agents: AgentStore, case_id: int, *, reviewer: str, text: str) -> None:
    """Refuse the case's last draft; the reason is told to the next attempt, which this allows.

    Raises:
        NoSuchRow: there is no such case.
        NotWaiting: it does not wait for a decision.
        ValueError: no reason is given.
    """
    if not text.strip():
        raise ValueError("a rejection needs a reason: the next attempt is told it")
    _decide(agents, case_id, reviewer, "reject", text)


def comment(agents: AgentStore, case_id: int, *, reviewer: str, text: str) -> None:
    """Remark on a case without deciding it.

    Raises:
        NoSuchRow: there is no such case.
        ValueError: the remark is empty.
    """
    if not text.strip():
        raise ValueError("an empty remark says nothing")
    agents.case(case_id)
    agents.add_review(case_id, _attempt(agents, case_id), reviewer=reviewer, decision="comment", text=text)


def _decide(agents: AgentStore, case_id: int, reviewer: str, decision: str, text: str) -> None:
    case, attempt = agents.case(case_id), _attempt(agents, case_id)
    made = [r for r in agents.reviews(case_id) if r.attempt == attempt and r.decision != "comment"]
    if case.state != "waiting" or made:
        said = f"it was decided already ({made[-1].decision} by {made[-1].reviewer})" if made else f"it is {case.state}"
        raise NotWaiting(f"case {case_id} does not wait for a decision: {said}; go on with hf-adapters agent resume")
    agents.add_review(case_id, attempt, reviewer=reviewer, decision=decision, text=text)


def _attempt(agents: AgentStore, case_id: int) -> int:
    attempts = agents.attempts(case_id)
    return attempts[-1].number if attempts else 0
