"""Run one drafter on failing structures and measure what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_adapters.agents.acceptance.candidate import examine, secret_seed
from hf_adapters.agents.bounds import Bounds
from hf_adapters.agents.checkpoints import open_checkpointer
from hf_adapters.agents.evidence import parts_of
from hf_adapters.agents.portfolio import ListPortfolio
from hf_adapters.agents.protocol import Drafter
from hf_adapters.agents.run import advance, start
from hf_adapters.agents.sandbox.run import Job, Sandbox
from hf_adapters.agents.subject import Subject
from hf_adapters.agents.workshop import Workshop, drafted
from hf_adapters.store import Store
from hf_adapters.store.agent_records import StoredAttempt, StoredCase
from hf_adapters.store.agents import AgentStore
from hf_adapters.validation.inputs import spec_of, standard_sets
from hf_adapters.validation.ranges import choose
from hf_adapters.validation.runners import on_device
from hf_adapters.validation.types import Thresholds
from spyre_backend import capabilities

_STRICTER = Thresholds(floor_multiple=2.0)
"""Half of the error that is accepted otherwise."""
_DRAWS = 2
"""An accepted draft is judged anew by these, on inputs of that many other seeds: a rejection is a false accept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One drafter on one structure."""

    structure: str
    without: tuple[str, ...]
    drafter: str
    state: str
    """`waiting` is solved: a reviewer would be asked now."""
    attempts: int
    rejected: int
    """Attempts that failed; one draft for each failing place of the model is no failure."""
    reason: str
    false_accept: bool
    simulated_us: float | None
    """Of the accepted draft, all inputs of a validation together."""
    hand_written_us: float | None
    """Of the same structure with the hand-written adapter."""
    unknown: tuple[str, ...]
    """Why an accepted draft has no hand-written time, or was not judged anew; empty when both is known."""
    tokens: int
    usd: float
    seconds: float

    @property
    def solved(self) -> bool:
        """Whether an adapter was accepted."""
        return self.state == "waiting"


def measure(
    drafter: Drafter,
    subjects: Sequence[Subject],
    database: Path,
    *,
    bounds: Bounds,
    sandbox: Sandbox,
    regression: Sequence[Subject] = (),
    say: Callable[[str], None] = lambda _: None,
    minutes: float | None = None,
) -> list[Result]:
    """Let a drafter work on each structure alone; one that breaks it does not hide the others.

    Args:
        drafter: who drafts.
        subjects: failing structures.
        database: SQLite file that gets the cases; `read` gives the same results from it.
        bounds: of each structure.
        sandbox: where drafts run.
        regression: structures that pass and must go on passing.
        say: told about each result.
        minutes: no structure is begun after so many; None begins all of them.
    """
    database.parent.mkdir(parents=True, exist_ok=True)
    found: list[Result] = []
    deadline = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    with Store(str(database)) as store, open_checkpointer(str(database)) as checkpointer:
        store.upgrade()
        for subject in subjects:
            if time.monotonic() >= deadline:
                say(f"{minutes:g} minutes are over: {len(subjects) - len(found)} structures are not begun")
                break
            portfolio = ListPortfolio(subjects=(subject,), regression=tuple(regression))
            shop = Workshop(
                agents=AgentStore(store), portfolio=portfolio, drafter=drafter, sandbox=sandbox, bounds=bounds, say=say
            )
            case_id = start(shop, release=subject.release, wanted=subject.key)
            _name(shop.agents, case_id, subject)
            try:
                case = advance(shop, checkpointer, case_id)
                if case.state == "waiting":
                    _judge_anew(shop, case_id, subject)
            except Exception as error:
                shop.agents.update_case(case_id, state="failed", reason=_text(error))
            found.append(_result(shop.agents, shop.agents.case(case_id)))
            say(f"{subject.label}: {found[-1].state} after {found[-1].attempts} attempts, {found[-1].seconds:.0f} s")
    return found


def read(database: Path, drafter: str) -> list[Result]:
    """The results of one drafter in a database that `measure` wrote."""
    with Store(str(database)) as store:
        agents = AgentStore(store)
        return [_result(agents, case) for case in reversed(agents.cases()) if case.drafter == drafter]


def drafters(database: Path) -> list[str]:
    """Names of the drafters in a database that `measure` wrote."""
    with Store(str(database)) as store:
        return list(dict.fromkeys(case.drafter for case in reversed(AgentStore(store).cases())))


def _name(agents: AgentStore, case_id: int, subject: Subject) -> None:
    """The case's own step does it again; a case that breaks before has its name all the same."""
    options = {**agents.case(case_id).options, "without": list(subject.without)}
    agents.update_case(case_id, subject_key=subject.key, label=subject.label, options=options)


def _judge_anew(shop: Workshop, case_id: int, subject: Subject) -> None:
    """Note with the accepted draft whether a stricter judge takes it too, and what the hand-written adapter needs."""
    attempts = shop.agents.attempts(case_id)
    facts: dict[str, Any] = {"false_accept": None, "hand_written_us": None, "unknown": []}
    for name, ask in (
        ("false_accept", lambda: _false(attempts, subject, shop.sandbox)),
        ("hand_written_us", lambda: hand_written(subject, shop.sandbox)),
    ):
        try:
            facts[name] = ask()
        except Exception as error:  # What cannot be measured is said, and leaves the rest of the run alone.
            facts["unknown"].append(f"{name}: {_text(error)}")
    metrics = {**attempts[-1].metrics, "bench": facts}
    shop.agents.update_attempt(case_id, attempts[-1].number, metrics=metrics)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _result(agents: AgentStore, case: StoredCase) -> Result:
    """What the database says of a case."""
    attempts, spent = agents.attempts(case.id), agents.spent(case.id)
    solved = case.state == "waiting"
    metrics = attempts[-1].metrics if solved else {}
    figures, facts = metrics.get("validate", {}).get("figures", {}), metrics.get("bench", {})
    return Result(
        structure=case.label,
        without=tuple(case.options.get("without", ())),
        drafter=case.drafter,
        state=case.state,
        attempts=len(attempts),
        rejected=sum(a.outcome == "rejected" for a in attempts),
        reason=_reason(case, attempts),
        false_accept=bool(facts.get("false_accept")),
        simulated_us=figures.get("simulated_us"),
        hand_written_us=facts.get("hand_written_us"),
        unknown=tuple(facts.get("unknown", ())),
        tokens=int(spent["tokens"]),
        usd=spent["usd"],
        seconds=spent["seconds"],
    )


def _reason(case: StoredCase, attempts: Sequence[StoredAttempt]) -> str:
    told = case.state in ("waiting", "failed") or not attempts
    return case.reason if told else attempts[-1].reason or case.reason


def _false(attempts: Sequence[StoredAttempt], subject: Subject, sandbox: Sandbox) -> bool:
    """Whether drafts that were accepted are rejected by a stricter judge on other inputs."""
    last, parts = drafted(attempts[-1]), tuple(map(drafted, parts_of(attempts)))
    outcome = examine(
        last.source, last.adapter, subject, sandbox,
        seed=secret_seed(), beside=parts, thresholds=_STRICTER, draws=_DRAWS,
    )  # fmt: skip
    return not outcome.accepted


class NotRun(RuntimeError):
    """The whole catalogue does not run a structure; the message says how far it came and why."""


def hand_written(subject: Subject, sandbox: Sandbox) -> float:
    """Simulated microseconds of a validation's inputs with the whole catalogue.

    Raises:
        NotRun: it does not run.
    """
    whole = replace(subject, without=())
    model = whole.build()
    inputs = standard_sets(spec_of(model), 0)
    with capabilities.use(whole.release):
        precision = choose(model, on_device(inputs))
    answer = sandbox.run(Job(subject=whole, source="", inputs=inputs, dtype=precision.dtype))
    if answer.kind != "done" or answer.data.get("simulated_us") is None:
        raise NotRun(f"{answer.kind} at {answer.stage}: {answer.reason}")
    return float(answer.data["simulated_us"])


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """The figures of one drafter over its results."""
    solved = [r for r in results if r.solved]
    failing = [r for r in results if r.state != "not-failing"]
    ratios = [r.simulated_us / r.hand_written_us for r in solved if r.simulated_us and r.hand_written_us]
    return {
        "structures": len(failing),
        "not failing": len(results) - len(failing),
        "solved@1": sum(r.rejected == 0 for r in solved),
        "solved@k": len(solved),
        "false accepts": sum(r.false_accept for r in solved),
        "not judged anew": sorted(r.structure for r in solved if any("false_accept" in text for text in r.unknown)),
        "no hand-written time": sorted(r.structure for r in solved if r.hand_written_us is None),
        "attempts": sum(r.attempts for r in results),
        "rediscovered": sorted({name for r in solved for name in r.without}),
        "simulated time / hand-written": round(sum(ratios) / len(ratios), 3) if ratios else None,
        "tokens": sum(r.tokens for r in results),
        "usd": round(sum(r.usd for r in results), 4),
        "seconds": round(sum(r.seconds for r in results), 1),
    }
