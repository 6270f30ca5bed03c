"""Review and land."""

from __future__ import annotations

from typing import Any

from langgraph.types import interrupt

from hf_adapters.agents.evidence import message, summary
from hf_adapters.agents.landing import CannotLand, Landing, land
from hf_adapters.agents.screening.policy import screen
from hf_adapters.agents.state import CaseState
from hf_adapters.agents.workshop import Workshop
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
    found = workshop.reject(state, "review", f"{decided['reviewer']}: {decided['text'] or 'no reason given'}")
    return {**found, "decision": decided}


def land_(workshop: Workshop, state: CaseState) -> CaseState:
    """Make the branch and register the adapter."""
    case_id, attempt = state["case_id"], workshop.attempt(state)
    adapter = screen(attempt.source).adapter
    assert adapter is not None, "an approved draft declares its adapter"
    if workshop.repository is None:
        raise CannotLand("no repository to land in; name one with --repo")
    branch = land(
        Landing(
            name=adapter.name,
            source=attempt.source,
            summary=adapter.summary,
            rules=adapter.rules,
            equivalence=adapter.equivalence,
            case_id=case_id,
            message=message(workshop.agents, case_id),
        ),
        workshop.repository,
    )
    record = AdapterRecord(
        name=adapter.name,
        hash=attempt.adapter_hash or "unknown",
        summary=adapter.summary,
        equivalence=adapter.equivalence,
        rules=adapter.rules,
        releases=adapter.releases,
        drafter=workshop.agents.case(case_id).drafter,
        trust="reviewed" if attempt.sandboxed else "reviewed, validated without a sandbox",
    )
    workshop.agents.store.put_adapters([record])
    workshop.agents.update_case(case_id, state="landed", branch=branch, reason=f"landed on {branch}")
    workshop.say(f"landed on {branch}")
    return {"ended": "landed"}
