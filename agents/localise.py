"""From a failing subject to the `Failure` that a drafter is told."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from hf_adapters.agents.places import computed, of_fallback
from hf_adapters.agents.protocol import Failure, Operand
from hf_adapters.agents.subject import Subject
from hf_adapters.diagnose import Diagnosis, diagnose
from hf_adapters.validate import validate
from hf_adapters.validation.functions import Call, Patch
from hf_adapters.validation.inputs import InputSet, draw, spec_of
from hf_adapters.validation.runners import Device
from hf_adapters.validation.smallest import Smallest, recorded_calls, save_reproducer, smallest
from spyre_backend import capabilities

PUBLIC_SEED = 20_260_707
"""Seed of the inputs that drafters may look at."""


def public_batch(model: nn.Module) -> InputSet:
    """The inputs on which failures are shown: two rows of one stick, the second padded."""
    return draw(spec_of(model), name="public", lengths=(64, 23), padding="right", seed=PUBLIC_SEED)


def find_failure(subject: Subject, model: nn.Module) -> Diagnosis:
    """Run the subject with the adapters it has, and say what is wrong first; `kind` is `none` when it runs right.

    Args:
        subject: the failing model.
        model: built from it, stock.
    """

    def apply(candidate: nn.Module) -> AbstractContextManager[nn.Module]:
        return subject.patched(candidate)

    names = [adapter.name for adapter in subject.adapters() if adapter.needed_by(subject.release)]
    runner = Device(adapters=names, release=subject.release)
    batch = public_batch(model)
    found = diagnose(model, [batch.kwargs], release=subject.release, patch=apply, runner=runner)
    return found if found.kind != "none" else _by_verdict(subject, model, apply, runner)


def _by_verdict(subject: Subject, model: nn.Module, apply: Patch, runner: Device) -> Diagnosis:
    """What a whole validation says of a model that runs on the public inputs: fallbacks, other lengths, rankings."""
    verdict = validate(
        model, release=subject.release, patch=apply, runner=runner, source=subject.source(), try_native=False
    )
    if verdict.accepted:
        return Diagnosis(kind="none", message=verdict.reason)
    return Diagnosis(
        kind="refused"
        if verdict.verdict == "uncovered"
        else "inaccurate"
        if verdict.verdict == "mismatch"
        else "failed",
        message=f"{verdict.verdict}: {verdict.reason}",
        module_path=verdict.module_path,
        op=verdict.op or computed(verdict.fallbacks),
        rule=verdict.rule,
        source_line=verdict.source_line,
        hint=verdict.hint,
        error=verdict.multiple,
        limit=verdict.floor_multiple,
    )


def localise(subject: Subject, model: nn.Module, diagnosis: Diagnosis, folder: Path | None = None) -> Failure:
    """The smallest failing module with its source and its operands.

    Args:
        subject: the failing model.
        model: built from it, stock; left as it was.
        diagnosis: what `find_failure` said.
        folder: where a script that fails in the same way is saved; None saves none.
    """
    path, batch = (diagnosis.module_path or "").partition(" ")[0], public_batch(model)
    with capabilities.use(subject.release):
        if not path and diagnosis.op and diagnosis.kind == "failed":
            path = of_fallback(model, diagnosis.op, subject.patched, batch, subject.release)
        found = smallest(model, path, diagnosis.rule or "", subject.patched, batch, subject.release)
    source, first = found.source()
    script = _saved(found, subject, diagnosis, folder)
    return Failure(
        diagnosis=diagnosis,
        path=found.path,
        module=found.name,
        source=source,
        first_line=first,
        operands=tuple(Operand(name=name, shape=shape, dtype=dtype) for name, shape, dtype in found.operands),
        reproducer=script,
    )


def _saved(found: Smallest, subject: Subject, diagnosis: Diagnosis, folder: Path | None) -> str | None:
    if folder is None or not found.alone:
        return None
    title = f"{subject.label}, module {found.path or 'the model'}: {diagnosis.message}"
    return str(save_reproducer(found, folder, release=subject.release, title=title))


def capture(model: nn.Module, path: str) -> tuple[nn.Module, Call]:
    """A module of a stock model and its first call on the public inputs, float32 on the CPU.

    Raises:
        LookupError: there is no such module, or it is not called.
    """
    if path and path not in dict(model.named_modules()):
        raise LookupError(f"the model has no module {path!r}")
    batch = public_batch(model)
    if not path:
        return model, Call((), dict(batch.kwargs))
    calls = recorded_calls(model, [path], batch)
    if path not in calls:
        raise LookupError(f"the module {path!r} is not called")
    return model.get_submodule(path), calls[path]


def failure_to_json(failure: Failure) -> dict[str, Any]:
    """Plain data, accepted by `failure_from_json`."""
    return asdict(failure)


def failure_from_json(data: dict[str, Any]) -> Failure:
    """Rebuild from `failure_to_json`."""
    said = dict(data["diagnosis"])
    said["shapes"] = tuple(tuple(shape) for shape in said["shapes"])
    said["dtypes"] = tuple(said["dtypes"])
    operands = tuple(Operand(**{**o, "shape": tuple(o["shape"])}) for o in data["operands"])
    return Failure(**{**data, "diagnosis": Diagnosis(**said), "operands": operands})
