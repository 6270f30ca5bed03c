"""Validate and generalise."""

from __future__ import annotations

from typing import Any

from hf_adapters.agents.acceptance.candidate import Outcome, concerned, examine, secret_seed
from hf_adapters.agents.localise import failure_from_json, failure_to_json
from hf_adapters.agents.protocol import Failure
from hf_adapters.agents.state import CaseState
from hf_adapters.agents.subject import Subject
from hf_adapters.agents.workshop import Workshop


def validate(workshop: Workshop, state: CaseState) -> CaseState:
    """The failing model with the draft, on inputs that it has not seen."""
    drafted, parts = workshop.drafted(state), workshop.parts(state)
    subject = Subject.from_json(state["subject"])
    causes = [failure_from_json(f).diagnosis for f in (*state.get("solved", []), state["failure"])]
    with workshop.timed(state):
        outcome = examine(
            drafted.source, drafted.adapter, subject, workshop.sandbox,
            seed=secret_seed(), beside=parts, causes=causes if len(causes) < workshop.bounds.places else (),
        )  # fmt: skip
    workshop.agents.update_attempt(state["case_id"], state["attempt"], sandboxed=outcome.sandboxed)
    if outcome.remaining is not None:
        return _onward(workshop, state, outcome)
    if not outcome.accepted:
        return workshop.reject(state, "validate", outcome.reason, {"validate": _metrics(outcome)})
    assert outcome.validation is not None
    digest = outcome.validation.adapters.get(drafted.adapter.name)
    workshop.agents.update_attempt(state["case_id"], state["attempt"], adapter_hash=digest)
    return workshop.passed(state, "validate", outcome.reason, {"validate": _metrics(outcome)})


def _onward(workshop: Workshop, state: CaseState, outcome: Outcome) -> CaseState:
    """The draft is right for its module and the model fails at another one: that is diagnosed next.

    Both are judged together in the end, so this one may still turn out wrong.
    """
    assert outcome.remaining is not None
    digest = (
        None if outcome.validation is None else outcome.validation.adapters.get(workshop.drafted(state).adapter.name)
    )
    reason = f"right for its own module; the model then fails elsewhere: {outcome.reason}"
    workshop.passed(state, "validate", reason, {"validate": _metrics(outcome)})
    workshop.agents.update_attempt(state["case_id"], state["attempt"], outcome="accepted", adapter_hash=digest)
    following = Failure(diagnosis=outcome.remaining, path="", module="", source="", first_line=None, operands=())
    return {
        "proven": False,
        "onward": True,
        "parts": [*state.get("parts", []), state["attempt"]],
        "solved": [*state.get("solved", []), state["failure"]],
        "failure": failure_to_json(following),
    }


def generalise(workshop: Workshop, state: CaseState) -> CaseState:
    """Every sibling, then everything that passed before: a draft that breaks one loses."""
    drafted, parts = workshop.drafted(state), workshop.parts(state)
    source, adapter = drafted.source, drafted.adapter
    passing = workshop.portfolio.passing()
    siblings = _siblings(workshop, state)
    found: dict[str, Any] = {"solved": [], "unchanged": [], "unsolved": {}, "kept": [], "untouched": 0}
    with workshop.timed(state):
        changed = concerned(source, adapter, siblings, workshop.sandbox, parts)
        found["unchanged"] = [other.label for other in siblings if other not in changed]
        for other in changed:
            outcome = examine(source, adapter, other, workshop.sandbox, seed=secret_seed(), prove=False, beside=parts)
            if outcome.accepted:
                found["solved"].append(other.label)
            elif _harmful(outcome):
                reason = f"wrong on the sibling {other.label}: {outcome.reason}"
                return workshop.reject_all(state, "generalise", reason, {"generalise": found})
            else:
                found["unsolved"][other.label] = outcome.reason
        touched = concerned(source, adapter, passing, workshop.sandbox, parts)
        found["untouched"] = len(passing) - len(touched)
        for other in touched:
            outcome = examine(source, adapter, other, workshop.sandbox, seed=secret_seed(), prove=False, beside=parts)
            if not outcome.accepted:
                reason = f"{other.label} passed before and does not with it: {outcome.reason}"
                return workshop.reject_all(state, "generalise", reason, {"generalise": found})
            found["kept"].append(other.label)
    reason = (
        f"{len(found['solved'])} of {len(siblings)} siblings solved as well; "
        f"{len(found['kept'])} that passed before still do, {found['untouched']} are not touched"
    )
    return workshop.passed(state, "generalise", reason, {"generalise": found})


def _harmful(outcome: Outcome) -> bool:
    """A sibling that still fails for another reason is no fault of the draft; wrong numbers and crashes are."""
    return outcome.validation is None or outcome.validation.verdict not in ("uncovered", "fallback")


def _siblings(workshop: Workshop, state: CaseState) -> list[Subject]:
    """Models that fail as this one does, at any of its places."""
    subject = Subject.from_json(state["subject"])
    found: dict[str, Subject] = {}
    for failure in (*state.get("solved", []), state["failure"]):
        for sibling in workshop.portfolio.siblings(subject, failure_from_json(failure)):
            found.setdefault(sibling.key, sibling)
    return list(found.values())


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
