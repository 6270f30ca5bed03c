"""Review and land."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from langgraph.types import interrupt

from hf_adapters.agents.evidence import message, summary
from hf_adapters.agents.landing import CannotLand, Landing, land
from hf_adapters.agents.screening.declared import Drafted
from hf_adapters.agents.state import CaseState
from hf_adapters.agents.workshop import Workshop
from hf_adapters.store.agent_records import StoredAttempt
from hf_adapters.store.records import AdapterRecord


def review(workshop: Workshop, state: CaseState) -> CaseState:
    """Wait for a person; what they decide comes back as the value of the interrupt."""
    case_id = state["case_id"]
    workshop.agents.update_case(case_id, state="waiting", reason="waits for a reviewer")
    decided: dict[str, Any] = interrupt(summary(workshop.agents, case_id))
    workshop.agents.update_case(case_id, state="working", reason="")
    if decided["decision"] == "approve":
        workshop.agents.update_attempt(case_id, state["attempt"], outcome="accepted", stage="review")
        return {"decision": decided, "proven": True}
    found = workshop.reject_all(state, "review", f"{decided['reviewer']}: {decided['text'] or 'no reason given'}")
    return {**found, "decision": decided}


def land_(workshop: Workshop, state: CaseState) -> CaseState:
    """Make the branch and register the adapter, with those drafted for other places of the same model."""
    case_id, drafts = state["case_id"], (*workshop.parts(state), workshop.drafted(state))
    if workshop.repository is None:
        raise CannotLand("no repository to land in; name one with --repo")
    *parts, last = (
        Landing(
            name=drafted.adapter.name,
            source=drafted.source,
            summary=drafted.adapter.summary,
            rules=drafted.adapter.rules,
            equivalence=drafted.adapter.equivalence,
            case_id=case_id,
            message=message(workshop.agents, case_id),
        )
        for drafted in drafts
    )
    branch = land(replace(last, beside=tuple(parts)), workshop.repository)
    numbers = (*state.get("parts", []), state["attempt"])
    rows = [a for a in workshop.agents.attempts(case_id) if a.number in numbers]
    drafter = workshop.agents.case(case_id).drafter
    workshop.agents.store.put_adapters(_record(d, row, drafter) for d, row in zip(drafts, rows, strict=True))
    workshop.agents.update_case(case_id, state="landed", branch=branch, reason=f"landed on {branch}")
    workshop.say(f"landed on {branch}")
    return {"ended": "landed"}


def _record(drafted: Drafted, attempt: StoredAttempt, drafter: str) -> AdapterRecord:
    adapter = drafted.adapter
    return AdapterRecord(
        name=adapter.name,
        hash=attempt.adapter_hash or "unknown",
        summary=adapter.summary,
        equivalence=adapter.equivalence,
        rules=adapter.rules,
        releases=adapter.releases,
        drafter=drafter,
        trust="reviewed" if attempt.sandboxed else "reviewed, validated without a sandbox",
    )
