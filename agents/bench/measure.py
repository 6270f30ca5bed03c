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
from hf_adapters.store.agent_records import StoredAttempt
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
    folder: Path,
    *,
    bounds: Bounds,
    sandbox: Sandbox,
    regression: Sequence[Subject] = (),
    say: Callable[[str], None] = lambda _: None,
    minutes: float | None = None,
) -> list[Result]:
    """Let a drafter work on each structure alone.

    Args:
        drafter: who drafts.
        subjects: failing structures.
        folder: for the database of the run; made when missing.
        bounds: of each structure.
        sandbox: where drafts run.
        regression: structures that pass and must go on passing.
        say: told about each result.
        minutes: no structure is begun after so many; None begins all of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    database = str(folder / f"bench-{time.time_ns()}.db")
    found: list[Result] = []
    deadline = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    with Store(database) as store, open_checkpointer(database) as checkpointer:
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
            try:
                case = advance(shop, checkpointer, case_id)
                found.append(_result(shop, case_id, subject, case.state, case.reason))
            except Exception as error:  # one structure that breaks a drafter must not hide the others
                reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
                found.append(_result(shop, case_id, subject, "failed", reason))
            say(f"{subject.label}: {found[-1].state} after {found[-1].attempts} attempts, {found[-1].seconds:.0f} s")
    return found


def _result(shop: Workshop, case_id: int, subject: Subject, state: str, reason: str) -> Result:
    attempts, spent = shop.agents.attempts(case_id), shop.agents.spent(case_id)
    solved = state == "waiting"
    figures = attempts[-1].metrics.get("validate", {}).get("figures", {}) if solved else {}
    return Result(
        structure=subject.label,
        without=subject.without,
        drafter=shop.drafter.name,
        state=state,
        attempts=len(attempts),
        rejected=sum(a.outcome == "rejected" for a in attempts),
        reason=reason if not attempts or solved else attempts[-1].reason or reason,
        false_accept=solved and _false(attempts, subject, shop.sandbox),
        simulated_us=figures.get("simulated_us"),
        hand_written_us=hand_written(subject, shop.sandbox) if solved else None,
        tokens=int(spent["tokens"]),
        usd=spent["usd"],
        seconds=spent["seconds"],
    )


def _false(attempts: Sequence[StoredAttempt], subject: Subject, sandbox: Sandbox) -> bool:
    """Whether drafts that were accepted are rejected by a stricter judge on other inputs."""
    last, parts = drafted(attempts[-1]), tuple(map(drafted, parts_of(attempts)))
    outcome = examine(
        last.source, last.adapter, subject, sandbox,
        seed=secret_seed(), beside=parts, thresholds=_STRICTER, draws=_DRAWS,
    )  # fmt: skip
    return not outcome.accepted


def hand_written(subject: Subject, sandbox: Sandbox) -> float | None:
    """Simulated microseconds of a validation's inputs with the whole catalogue; None when it does not run."""
    whole = replace(subject, without=())
    model = whole.build()
    inputs = standard_sets(spec_of(model), 0)
    with capabilities.use(whole.release):
        precision = choose(model, on_device(inputs))
    answer = sandbox.run(Job(subject=whole, source="", inputs=inputs, dtype=precision.dtype))
    return answer.data.get("simulated_us") if answer.kind == "done" else None


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
        "attempts": sum(r.attempts for r in results),
        "rediscovered": sorted({name for r in solved for name in r.without}),
        "simulated time / hand-written": round(sum(ratios) / len(ratios), 3) if ratios else None,
        "tokens": sum(r.tokens for r in results),
        "usd": round(sum(r.usd for r in results), 4),
        "seconds": round(sum(r.seconds for r in results), 1),
    }
