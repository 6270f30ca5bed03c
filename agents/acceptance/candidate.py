"""One draft on one model: sandbox, reference process, verdict."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from hf_adapters.agents.acceptance import claims
from hf_adapters.agents.places import computed
from hf_adapters.agents.sandbox.run import Answer, Job, Sandbox, tensors_below
from hf_adapters.agents.screening.declared import Declared, Drafted
from hf_adapters.agents.subject import Subject
from hf_adapters.diagnose import Diagnosis, of_error
from hf_adapters.validation import conduct, verdicts
from hf_adapters.validation.acceptance import UnusableReference
from hf_adapters.validation.inputs import InputSet, spec_of, standard_sets, varied_sizes
from hf_adapters.validation.ranges import DTYPES, choose
from hf_adapters.validation.recording import Recording
from hf_adapters.validation.reference import Candidate, ProcessJudge
from hf_adapters.validation.runners import Execution, on_device
from hf_adapters.validation.types import Check, Precision, Thresholds, Validation
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
    remaining: Diagnosis | None = None
    """What the device refuses elsewhere, when nothing speaks against the draft itself: another one may solve that."""
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
    source: str,
    adapter: Declared,
    subject: Subject,
    sandbox: Sandbox,
    *,
    seed: int,
    prove: bool = True,
    beside: Sequence[Drafted] = (),
    causes: Sequence[Diagnosis] = (),
    thresholds: Thresholds | None = None,
    draws: int = 1,
) -> Outcome:
    """Run a draft that passed the screen on one model and judge it.

    Args:
        source: the draft.
        adapter: its claims.
        subject: the model.
        sandbox: where it runs.
        seed: seed of the inputs; a secret one for a verdict that counts.
        prove: run the draft's own examples as well.
        beside: drafts for other modules of the model, applied and judged together with this one.
        causes: failures that the draft and those beside it are for; `Outcome.remaining` is none of them, and stays
            None when there are none.
        thresholds: of the judgement; the usual ones when None.
        draws: how many times the inputs are drawn, each from a seed of its own.

    Raises:
        NoSandbox, SandboxFailed: see `Sandbox.run`.
    """
    chosen = capabilities.load(subject.release)
    thresholds = thresholds or Thresholds()
    # Stock, and needed here only for what its inputs look like and how large its values get.
    model = subject.build()
    input_sets = standard_sets(spec_of(model), seed)
    for draw in range(1, draws):
        input_sets += tuple(replace(s, name=f"{s.name}{draw}") for s in standard_sets(spec_of(model), seed + draw))
    input_sets += varied_sizes(spec_of(model), seed + draws)
    with capabilities.use(chosen.release):
        precision = choose(model, on_device(input_sets))
    job = Job(
        subject=subject, source=source, name=adapter.name, beside=tuple(beside), inputs=input_sets,
        dtype=precision.dtype, thresholds=thresholds, prove=prove,
    )  # fmt: skip
    judge = ProcessJudge(subject.source(), input_sets, "mean", thresholds, chosen.release, DTYPES[precision.dtype])
    drafts = (*(drafted.adapter for drafted in beside), adapter)
    try:
        answer = sandbox.run(job)
        outcome = _interpreted(answer, drafts, subject, judge, input_sets, prove, _Facts(seed, precision, thresholds))
        return _with_remaining(outcome, answer, drafts, causes, prove) if causes else outcome
    except UnusableReference as error:
        reason = f"no reference: {error}"
        return Outcome(subject=subject.label, accepted=False, applies=False, reason=reason, validation=None)
    finally:
        judge.close()


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the record of a verdict says of how it came about."""

    seed: int
    precision: Precision
    thresholds: Thresholds


def _interpreted(
    answer: Answer,
    drafts: tuple[Declared, ...],
    subject: Subject,
    judge: ProcessJudge,
    input_sets: tuple[InputSet, ...],
    prove: bool,
    facts: _Facts,
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
        base = _record(subject, input_sets, facts, answer)
        return _judged(outcome, base, answer, drafts, judge, input_sets, prove)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return replace(outcome, reason=f"the sandbox's answer does not fit: {type(error).__name__}: {error}")


def _judged(
    outcome: Outcome,
    base: Validation,
    answer: Answer,
    drafts: tuple[Declared, ...],
    judge: ProcessJudge,
    input_sets: tuple[InputSet, ...],
    prove: bool,
) -> Outcome:
    if answer.kind != "done":
        found = verdicts.failed_run(base, _error(answer))
        return replace(outcome, reason=_said(answer, found), validation=found)
    if wrong := _contradictions(answer, drafts, prove):
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
            single=Recording(tensors_below(answer, "float32")),
            multiplications=execution.multiplications,
            conduct=(*checks, *(Check(**check) for check in answer.data["checks"])),
        )
    )
    found = verdicts.judged(base, execution, judgement, True)
    failed = "; ".join(found.failed_checks[:5]) or found.reason
    return replace(
        outcome, accepted=found.accepted, reason=found.reason if found.accepted else failed, validation=found
    )


def _seen(answer: Answer, drafts: tuple[Declared, ...]) -> list[tuple[Declared, dict[str, Any]]]:
    """What was seen of each draft; the last one's is the answer itself."""
    *earlier, last = drafts
    data = dict(answer.data)
    told = [(adapter, {**data, "sites": [], "proof": [], **data["beside"][adapter.name]}) for adapter in earlier]
    return [*told, (last, data)]


def _contradictions(answer: Answer, drafts: tuple[Declared, ...], prove: bool) -> list[str]:
    """Claims that the run contradicts; those of an earlier draft are marked with its name."""
    found = []
    for adapter, data in _seen(answer, drafts):
        mark = "" if adapter is drafts[-1] else f"{adapter.name}: "
        found += [mark + text for text in claims.after_running(adapter, data, prove=prove)]
        if mark and not data["sites"] and prove:
            found.append(f"{mark}the adapter applies to nothing in this model")
    return found


def _with_remaining(
    outcome: Outcome, answer: Answer, drafts: tuple[Declared, ...], causes: Sequence[Diagnosis], prove: bool
) -> Outcome:
    """The outcome with what the device refuses outside of the drafts' sites, or runs on the CPU, unless it is what they
    are for.

    Nothing is accepted by this: with the drafts for the rest, all are judged again.
    """
    validation = outcome.validation
    if validation is not None and validation.verdict == "fallback":
        return replace(outcome, remaining=_fallback(validation, causes))
    if (answer.kind, answer.stage) != ("refused", "device") or not outcome.applies or validation is None:
        return outcome
    try:
        refused = of_error(_error(answer), capabilities.load(validation.release))
        places = [str(site["path"]) for _, data in _seen(answer, drafts) for site in data["sites"]]
        unequal = [check["where"] for check in answer.data["checks"] if check["passed"] is not True]
        wrong = _contradictions(answer, drafts, prove)
    except (KeyError, TypeError, ValueError, AttributeError):
        return outcome
    path = (refused.module_path or "").partition(" ")[0]
    known = any((c.rule, _kind_of_place(c)) == (refused.rule, _kind_of_place(refused)) for c in causes)
    if wrong or unequal or known or not path or any(claims.below(path, place) for place in places):
        return outcome
    return replace(outcome, remaining=refused)


def _fallback(validation: Validation, causes: Sequence[Diagnosis]) -> Diagnosis | None:
    """What a model that is right runs on the CPU, when no draft is for that."""
    op = computed(validation.fallbacks)
    if op is None or any(cause.kind == "failed" and cause.op == op for cause in causes):
        return None
    return Diagnosis(kind="failed", message=f"fallback: {validation.reason}", op=op)


def _kind_of_place(diagnosis: Diagnosis) -> str:
    """The class in parentheses of a diagnosis; the path where the compiler names no class."""
    path, _, name = (diagnosis.module_path or "").partition(" ")
    return name or path


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
        computed_elsewhere={str(what): int(count) for what, count in data["computed_elsewhere"].items()},
        multiplications=None if data["multiplications"] is None else int(data["multiplications"]),
        layers=int(data["layers"]),
        seconds=float(data["seconds"]),
    )


def _record(subject: Subject, input_sets: tuple[InputSet, ...], facts: _Facts, answer: Answer) -> Validation:
    chosen = capabilities.load(subject.release)
    return Validation(
        verdict="crashed",
        reason="",
        floor_multiple=facts.thresholds.floor_multiple,
        adapters={str(name): str(value) for name, value in answer.data.get("adapters", {}).items()},
        weights="random",
        inputs=", ".join(f"{s.name} {'x'.join(map(str, s.kwargs['input_ids'].shape))}" for s in input_sets),
        seed=facts.seed,
        precision=facts.precision,
        release=chosen.release,
        reference="process",
        runner="device, sandboxed" if answer.sandboxed else "device, no sandbox",
        versions={"capabilities": chosen.fingerprint, "torch": torch.__version__},
        seconds=round(answer.seconds, 3),
        ladder="built",
    )


def concerned(
    source: str, adapter: Declared, subjects: Sequence[Subject], sandbox: Sandbox, beside: Sequence[Drafted] = ()
) -> list[Subject]:
    """Those of the models in which a draft or one beside it changes something, and those where that cannot be told.

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
            answer = sandbox.run(Job(subject=None, source=source, name=adapter.name, beside=tuple(beside), scan=batch))
            counts: Any = answer.data.get("scanned") if answer.kind == "done" else None
            known = counts if isinstance(counts, dict) else {}
            found += [subject for subject in batch if known.get(subject.key) != 0]
    return found
