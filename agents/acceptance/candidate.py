"""One draft on one model: sandbox, reference process, verdict."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hf_adapters.agents.acceptance import claims
from hf_adapters.agents.sandbox.run import Answer, Job, Sandbox, tensors_below
from hf_adapters.agents.screening.declared import Declared
from hf_adapters.agents.subject import Subject
from hf_adapters.validation import conduct, verdicts
from hf_adapters.validation.acceptance import UnusableReference
from hf_adapters.validation.inputs import InputSet, spec_of, standard_sets
from hf_adapters.validation.recording import Recording
from hf_adapters.validation.reference import Candidate, ProcessJudge
from hf_adapters.validation.runners import Execution, on_device
from hf_adapters.validation.types import Check, Thresholds, Validation
from spyre_backend import capabilities
from spyre_backend.errors import SpyreUnsupported


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of a draft on one model."""

    subject: str
    """The model's label."""
    accepted: bool
    applies: bool
    """Whether the draft has a site there."""
    reason: str
    validation: Validation | None
    sites: tuple[str, ...] = ()
    sandboxed: bool = True
    simulated_us: float | None = None
    log: str = field(default="", repr=False)

    def figures(self) -> dict[str, float]:
        """What was measured, by name."""
        names = ("noise_floor", "multiple", "cosine_min", "cosine_pooled", "spearman", "equivalence_error", "seconds")
        found = {name: getattr(self.validation, name) for name in names} if self.validation is not None else {}
        found["simulated_us"] = self.simulated_us
        return {name: float(value) for name, value in found.items() if value is not None}


_SCANNED_AT_ONCE = 12
"""Models that one sandboxed process looks through: starting it costs more than looking."""


def secret_seed() -> int:
    """A seed for inputs that no draft has seen; kept with the verdict so that it can be repeated."""
    return secrets.randbits(62)


def examine(
    source: str, adapter: Declared, subject: Subject, sandbox: Sandbox, *, seed: int, prove: bool = True
) -> Outcome:
    """Run a draft that passed the screen on one model and judge it.

    Args:
        source: the draft.
        adapter: its claims.
        subject: the model.
        sandbox: where it runs.
        seed: seed of the inputs; a secret one for a verdict that counts.
        prove: run the draft's own examples as well.

    Raises:
        NoSandbox, SandboxFailed: see `Sandbox.run`.
    """
    chosen = capabilities.load(subject.release)
    thresholds = Thresholds()
    # The model is needed here only for what its inputs look like.
    input_sets = standard_sets(spec_of(subject.build()), seed)
    job = Job(subject=subject, source=source, name=adapter.name, inputs=input_sets, thresholds=thresholds, prove=prove)
    judge = ProcessJudge(subject.source(), input_sets, "mean", thresholds, chosen.release)
    try:
        answer = sandbox.run(job)
        return _interpreted(answer, adapter, subject, judge, input_sets, seed, prove)
    except UnusableReference as error:
        reason = f"no reference: {error}"
        return Outcome(subject=subject.label, accepted=False, applies=False, reason=reason, validation=None)
    finally:
        judge.close()


def _interpreted(
    answer: Answer,
    adapter: Declared,
    subject: Subject,
    judge: ProcessJudge,
    input_sets: tuple[InputSet, ...],
    seed: int,
    prove: bool,
) -> Outcome:
    """The answer was written by a process in which the draft ran: whatever does not fit is held against the draft."""
    outcome = Outcome(subject=subject.label, accepted=False, applies=False, reason="", validation=None)
    try:
        outcome = replace(
            outcome,
            applies=bool(answer.data.get("sites")),
            sites=tuple(
                f"{s['path'] or '<model>'}: {s['before']} -> {s['after']}" for s in answer.data.get("sites", [])
            ),
            sandboxed=answer.sandboxed,
            simulated_us=answer.data.get("simulated_us"),
            log=answer.log,
        )
        base = _record(subject, input_sets, seed, answer)
        return _judged(outcome, base, answer, adapter, judge, input_sets, prove)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return replace(outcome, reason=f"the sandbox's answer does not fit: {type(error).__name__}: {error}")


def _judged(
    outcome: Outcome,
    base: Validation,
    answer: Answer,
    adapter: Declared,
    judge: ProcessJudge,
    input_sets: tuple[InputSet, ...],
    prove: bool,
) -> Outcome:
    if answer.kind != "done":
        found = verdicts.failed_run(base, _error(answer))
        return replace(outcome, reason=_said(answer, found), validation=found)
    wrong = list(claims.after_running(adapter, answer.data, prove=prove))
    if wrong:
        return replace(outcome, reason="; ".join(wrong))
    if not outcome.applies:
        return replace(outcome, reason="the adapter applies to nothing in this model")
    execution = _execution(answer)
    digest = judge.digest()
    checks = conduct.checks(
        execution,
        calls=len(on_device(input_sets)),
        weights_before=digest,
        weights_after=str(answer.data["weights"]),
        weights_reference=digest,
    )
    judgement = judge.judge(
        Candidate(
            recording=execution.recording,
            exact=Recording(tensors_below(answer, "float64")),
            multiplications=execution.multiplications,
            conduct=(*checks, *(Check(**check) for check in answer.data["checks"])),
        )
    )
    found = verdicts.judged(base, execution, judgement, True)
    failed = "; ".join(found.failed_checks[:5]) or found.reason
    return replace(
        outcome, accepted=found.accepted, reason=found.reason if found.accepted else failed, validation=found
    )


def _said(answer: Answer, found: Validation) -> str:
    if answer.kind in ("refused", "error"):
        return f"{answer.stage}: {found.reason}" + (f" Hint: {found.hint}" if found.hint else "")
    return f"{answer.kind}: {answer.reason}"


def _error(answer: Answer) -> Exception:
    refused: dict[str, Any] | None = answer.data.get("refused")
    if refused is None:
        return RuntimeError(answer.reason)
    shapes = tuple(tuple(int(size) for size in shape) for shape in refused["shapes"])
    return SpyreUnsupported(**{**refused, "shapes": shapes, "dtypes": tuple(refused["dtypes"])})


def _execution(answer: Answer) -> Execution:
    data = answer.data
    return Execution(
        recording=Recording(tensors_below(answer, "device")),
        fallbacks={(str(op), str(category)): int(count) for op, category, count in data["fallbacks"]},
        launches=int(data["launches"]),
        multiplications=None if data["multiplications"] is None else int(data["multiplications"]),
        layers=int(data["layers"]),
        seconds=float(data["seconds"]),
    )


def _record(subject: Subject, input_sets: tuple[InputSet, ...], seed: int, answer: Answer) -> Validation:
    chosen = capabilities.load(subject.release)
    return Validation(
        verdict="crashed",
        reason="",
        floor_multiple=Thresholds().floor_multiple,
        adapters={str(name): str(value) for name, value in answer.data.get("adapters", {}).items()},
        weights="random",
        inputs=", ".join(f"{s.name} {'x'.join(map(str, s.kwargs['input_ids'].shape))}" for s in input_sets),
        seed=seed,
        release=chosen.release,
        reference="process",
        runner="device, sandboxed" if answer.sandboxed else "device, no sandbox",
        versions={"capabilities": chosen.fingerprint, "torch": torch.__version__},
        seconds=round(answer.seconds, 3),
        ladder="built",
    )


def concerned(source: str, adapter: Declared, subjects: Sequence[Subject], sandbox: Sandbox) -> list[Subject]:
    """Those of the models in which a draft changes something, and those where that cannot be told.

    Raises:
        NoSandbox, SandboxFailed: see `Sandbox.run`.
    """
    found: list[Subject] = []
    groups: dict[tuple[str, tuple[str, ...]], list[Subject]] = {}
    for subject in subjects:
        groups.setdefault((subject.release, subject.without), []).append(subject)
    for group in groups.values():
        for start in range(0, len(group), _SCANNED_AT_ONCE):
            batch = tuple(group[start : start + _SCANNED_AT_ONCE])
            answer = sandbox.run(Job(subject=None, source=source, name=adapter.name, scan=batch))
            counts: Any = answer.data.get("scanned") if answer.kind == "done" else None
            known = counts if isinstance(counts, dict) else {}
            found += [subject for subject in batch if known.get(subject.key) != 0]
    return found
