"""Draft and screen."""

from __future__ import annotations

from hf_adapters.agents.acceptance import claims
from hf_adapters.agents.acceptance.duplicates import NEAR, nearest, sources
from hf_adapters.agents.localise import failure_from_json
from hf_adapters.agents.protocol import BudgetSpent, Cost, Draft, DraftTask, NoDraft
from hf_adapters.agents.screening.policy import screen as check
from hf_adapters.agents.state import CaseState
from hf_adapters.agents.subject import Subject
from hf_adapters.agents.workbench import SubjectWorkbench
from hf_adapters.agents.workshop import StoreJournal, Workshop, diff
from hf_adapters.catalogue import catalogue
from spyre_backend import capabilities


def draft(workshop: Workshop, state: CaseState) -> CaseState:
    """Ask the drafter, within what is left; an attempt that was killed here is made again under its number."""
    case_id, attempts = state["case_id"], workshop.agents.attempts(state["case_id"])
    exhausted = workshop.bounds.exhausted(attempts)
    if exhausted is not None:
        return _give_up(workshop, state, exhausted)
    number = 1 + sum(a.outcome != "drafting" for a in attempts)
    workshop.agents.begin_attempt(case_id, number)
    state = {**state, "attempt": number}
    subject, parts = Subject.from_json(state["subject"]), workshop.parts(state)
    failure = failure_from_json(state["failure"])
    solved = (failure_from_json(f).diagnosis for f in state.get("solved", []))
    journal = StoreJournal(workshop.agents, case_id, number)
    task = DraftTask(
        subject=subject,
        failure=failure,
        rejections=workshop.rejections(case_id, after=max(state.get("parts", []), default=0)),
        attempt=number,
        allowance=workshop.bounds.left(attempts),
        workbench=SubjectWorkbench(
            subject=subject,
            model=subject.build(),
            sandbox=workshop.sandbox,
            beside=parts,
            causes=(*solved, failure.diagnosis),
        ),
        earlier={part.adapter.name: part.source for part in parts},
        journal=journal,
    )
    workshop.say(f"attempt {number}: {workshop.drafter.name} drafts")
    try:
        with workshop.timed(state):
            proposed = workshop.drafter.draft(task)
    except (NoDraft, BudgetSpent) as error:
        workshop.agents.update_attempt(case_id, number, outcome="rejected", stage="draft", reason=str(error))
        return {**_give_up(workshop, state, f"{workshop.drafter.name}: {error}"), "attempt": number}
    _keep(workshop, case_id, number, proposed, journal)
    return {"attempt": number, "proven": False}


def _keep(workshop: Workshop, case_id: int, number: int, proposed: Draft, journal: StoreJournal) -> None:
    earlier = [a.source for a in workshop.agents.attempts(case_id) if a.number < number and a.source]
    rest = Cost(
        tokens_in=max(0, proposed.cost.tokens_in - journal.spent.tokens_in),
        tokens_out=max(0, proposed.cost.tokens_out - journal.spent.tokens_out),
        usd=max(0.0, proposed.cost.usd - journal.spent.usd),
    )
    journal.spend(rest)
    workshop.agents.update_attempt(
        case_id,
        number,
        source=proposed.source,
        notes=proposed.notes,
        diff=diff(earlier[-1] if earlier else "", proposed.source),
        transcript=list(proposed.transcript) or journal.steps,
    )


def _give_up(workshop: Workshop, state: CaseState, reason: str) -> CaseState:
    if parts := workshop.parts(state):
        place = state["failure"]["path"] or "the model"
        names = ", ".join(part.adapter.name for part in parts)
        reason = f"{reason}; {names} solved what failed before {place} and stays in the database"
    workshop.agents.update_case(state["case_id"], state="given-up", reason=reason)
    workshop.say(f"given up: {reason}")
    return {"ended": "given-up"}


def screen(workshop: Workshop, state: CaseState) -> CaseState:
    """The syntax-tree policy, the claims, and near-duplicates; nothing of the draft has run yet."""
    source, subject = workshop.attempt(state).source, Subject.from_json(state["subject"])
    screened = check(source)
    if not screened.ok or screened.adapter is None:
        return workshop.reject(state, "screen", "\n".join(screened.violations))
    adapter = screened.adapter
    workshop.agents.update_attempt(state["case_id"], state["attempt"], adapter_name=adapter.name)
    rule = state["failure"]["diagnosis"]["rule"]
    existing = subject.adapters()
    # A name left out is taken all the same: its file is there.
    taken = {a.name for a in catalogue()} | {part.adapter.name for part in workshop.parts(state)}
    wrong = list(claims.before_running(adapter, capabilities.load(subject.release), rule, taken))
    if wrong:
        return workshop.reject(state, "screen", "\n".join(wrong))
    near = nearest(source, sources(existing))
    if near is not None and near[1] >= NEAR:
        return workshop.reject(
            state, "screen", f"{near[1]:.0%} the same as the adapter {near[0]}; extend that one, or do something else"
        )
    earlier = (r for r in workshop.rejections(state["case_id"]) if r.attempt < state["attempt"])
    again = next((r for r in earlier if r.source.strip() == source.strip()), None)
    if again is not None:
        return workshop.reject(state, "screen", f"the same text as attempt {again.attempt}: {again.reason}")
    metrics = {"nearest": {"adapter": near[0], "share": round(near[1], 3)}} if near is not None else {}
    return workshop.passed(state, "screen", f"{adapter.name} may run in the sandbox", metrics)
