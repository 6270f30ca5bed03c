"""Validate and generalise."""

from __future__ import annotations

from typing import Any

from hf_adapters.agents.acceptance.candidate import Outcome, concerned, examine, secret_seed
from hf_adapters.agents.localise import failure_from_json
from hf_adapters.agents.screening.declared import Declared
from hf_adapters.agents.screening.policy import screen
from hf_adapters.agents.state import CaseState
from hf_adapters.agents.subject import Subject
from hf_adapters.agents.workshop import Workshop


def validate(workshop: Workshop, state: CaseState) -> CaseState:
    """The failing model with the draft, on inputs that it has not seen."""
    source, adapter = _drafted(workshop, state)
    subject = Subject.from_json(state["subject"])
    with workshop.timed(state):
        outcome = examine(source, adapter, subject, workshop.sandbox, seed=secret_seed())
    workshop.agents.update_attempt(state["case_id"], state["attempt"], sandboxed=outcome.sandboxed)
    if not outcome.accepted:
        return workshop.reject(state, "validate", outcome.reason, {"validate": _metrics(outcome)})
    assert outcome.validation is not None
    digest = outcome.validation.adapters.get(adapter.name)
    workshop.agents.update_attempt(state["case_id"], state["attempt"], adapter_hash=digest)
    return workshop.passed(state, "validate", outcome.reason, {"validate": _metrics(outcome)})


def generalise(workshop: Workshop, state: CaseState) -> CaseState:
    """Every sibling, then everything that passed before: a draft that breaks one loses."""
    source, adapter = _drafted(workshop, state)
    subject = Subject.from_json(state["subject"])
    passing = workshop.portfolio.passing()
    siblings = workshop.portfolio.siblings(subject, failure_from_json(state["failure"]))
    found: dict[str, Any] = {"solved": [], "unchanged": [], "unsolved": {}, "kept": [], "untouched": 0}
    with workshop.timed(state):
        changed = concerned(source, adapter, siblings, workshop.sandbox)
        found["unchanged"] = [other.label for other in siblings if other not in changed]
        for other in changed:
            outcome = examine(source, adapter, other, workshop.sandbox, seed=secret_seed(), prove=False)
            if outcome.accepted:
                found["solved"].append(other.label)
            elif _harmful(outcome):
                reason = f"wrong on the sibling {other.label}: {outcome.reason}"
                return workshop.reject(state, "generalise", reason, {"generalise": found})
            else:
                found["unsolved"][other.label] = outcome.reason
        touched = concerned(source, adapter, passing, workshop.sandbox)
        found["untouched"] = len(passing) - len(touched)
        for other in touched:
            outcome = examine(source, adapter, other, workshop.sandbox, seed=secret_seed(), prove=False)
            if not outcome.accepted:
                reason = f"{other.label} passed before and does not with it: {outcome.reason}"
                return workshop.reject(state, "generalise", reason, {"generalise": found})
            found["kept"].append(other.label)
    reason = (
        f"{len(found['solved'])} of {len(siblings)} siblings solved as well; "
        f"{len(found['kept'])} that passed before still do, {found['untouched']} are not touched"
    )
    return workshop.passed(state, "generalise", reason, {"generalise": found})


def _harmful(outcome: Outcome) -> bool:
    """A sibling that still fails for another reason is no fault of the draft; wrong numbers and crashes are."""
    return outcome.validation is None or outcome.validation.verdict not in ("uncovered", "fallback")


def _drafted(workshop: Workshop, state: CaseState) -> tuple[str, Declared]:
    source = workshop.attempt(state).source
    adapter = screen(source).adapter
    assert adapter is not None, "a draft that was screened declares its adapter"
    return source, adapter


def _metrics(outcome: Outcome) -> dict[str, Any]:
    seed = outcome.validation.seed if outcome.validation is not None else None
    return {
        "accepted": outcome.accepted,
        "reason": outcome.reason,
        "sites": list(outcome.sites),
        "figures": outcome.figures(),
        "seed": seed,
        "sandboxed": outcome.sandboxed,
        "validation": outcome.validation.to_dict() if outcome.validation is not None else None,
    }
