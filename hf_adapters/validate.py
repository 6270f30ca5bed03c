"""Accept or reject a model on the device: stock on the CPU against patched on the CPU against patched on the device.

    >>> verdict = hf_adapters.validate(model, weights="real")
    >>> verdict.verdict, verdict.noise_floor, verdict.multiple
    ('adapted', 0.0143, 1.1)

Acceptance has two halves and both must hold: in float64 the patched model and each replaced module equal the stock ones; on the device every token, at
every layer and at the pooled embedding, stays within `floor_multiple` times the error that the stock model has in the device's number format. See `validation/acceptance.py`.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hf_adapters.errors import HfAdaptersError
from hf_adapters.patching import patch_state, patched
from hf_adapters.validation import conduct, functions
from hf_adapters.validation.acceptance import UnusableReference
from hf_adapters.validation.inputs import InputSet, spec_of, standard_sets, structure_seed
from hf_adapters.validation.recording import POOLINGS, Pooling, Recording
from hf_adapters.validation.reference import Candidate, InlineJudge, Judge, ProcessJudge
from hf_adapters.validation.runners import Device, Execution, Runner, on_device, run_float64, weights_digest
from hf_adapters.validation.source import ModelSource
from hf_adapters.validation.types import Check, Judgement, Thresholds, Validation
from hf_adapters.validation.unsupported import unsupported_in
from spyre_backend import capabilities
from spyre_backend.errors import SpyreUnsupported

Patch = Callable[[nn.Module], AbstractContextManager[nn.Module]]


class ValidationInputError(HfAdaptersError, ValueError):
    """What was given to `validate` cannot be validated."""

    code = "E_VALIDATION_INPUT"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Task:
    """One call of `validate`, resolved."""

    model: nn.Module
    input_sets: tuple[InputSet, ...]
    pooling: Pooling
    thresholds: Thresholds
    release: str
    patch: Patch
    runner: Runner
    judge: Judge
    weights_before: str
    foreign_patch: bool
    """Whether the caller's own patch is applied, which leaves no report."""


def validate(
    model: nn.Module,
    *,
    inputs: Sequence[Mapping[str, Tensor]] | None = None,
    release: str | None = None,
    reference: Literal["process", "inline"] = "process",
    floor_multiple: float = 4.0,
    weights: Literal["real", "random"] = "random",
    depth: str = "all layers",
    pooling: Pooling = "mean",
    source: ModelSource | None = None,
    patch: Patch | None = None,
    runner: Runner | None = None,
    try_native: bool | None = None,
    seed: int | None = None,
) -> Validation:
    """Validate one stock model; it is left as it was.

    Args:
        model: stock, float32, on the CPU.
        inputs: batches of keyword arguments (`input_ids` int64 `[batch, length]`, ...); drawn from `seed` when None.
        release: torch-spyre release; the one in force when None.
        reference: `process` computes and judges the reference values in a process of its own; `inline` here, which is quicker and is recorded.
        floor_multiple: largest accepted error in noise floors.
        weights: what the verdict shall say of the weights.
        depth: what the verdict shall say of the depth.
        pooling: how a sentence vector is made of token vectors.
        source: how the reference process builds the model; written from `model` when None.
        patch: context manager that patches a model; `hf_adapters.patched` when None.
        runner: executes the candidate; `Device()` when None. With `Simulated()` no device and no compiler take part.
        try_native: whether the stock model is tried on the device before the patched one; yes on the device when None.
        seed: seed of the inputs; from the structure when None. Give a secret one when the patch is not trusted.

    Returns:
        The verdict and its evidence. Everything the device refuses is `uncovered`, not an exception.

    Raises:
        ValidationInputError: the model is patched, is not float32 on the CPU, or an argument is not usable.
    """
    started = time.perf_counter()
    _check_arguments(model, pooling, floor_multiple)
    chosen = capabilities.load(release) if release else capabilities.current()
    seed = structure_seed(model) if seed is None else seed
    input_sets = _input_sets(model, inputs, seed)
    thresholds = Thresholds(floor_multiple=floor_multiple)
    runner = runner or Device(release=chosen.release)
    base = Validation(
        verdict="crashed", reason="", floor_multiple=floor_multiple, weights=weights, depth=depth, seed=seed if inputs is None else None,
        inputs=", ".join(f"{s.name} {'x'.join(map(str, s.kwargs['input_ids'].shape))}" for s in input_sets), release=chosen.release,
        reference=reference, runner=runner.name, versions=_versions(chosen), ladder="built",
    )  # fmt: skip
    was_training = model.training
    model.eval()
    folder: str | None = None
    judge: Judge | None = None
    try:
        with capabilities.use(chosen.release):
            if reference == "process":
                source = source or ModelSource.from_model(model)
                folder = str(Path(source.path).parent) if source.path and source.temporary else None
                judge = ProcessJudge(source, input_sets, pooling, thresholds, chosen.release)
            else:
                judge = InlineJudge(model, input_sets, pooling, thresholds, chosen.release)
            task = _Task(
                model=model, input_sets=input_sets, pooling=pooling, thresholds=thresholds, release=chosen.release, judge=judge, runner=runner,
                patch=patch or (lambda m: patched(m, release=chosen.release)), weights_before=weights_digest(model),
                foreign_patch=patch is not None,
            )  # fmt: skip
            native = try_native if try_native is not None else isinstance(runner, Device) and patch is None
            result = _verdict(task, base, native)
    except UnusableReference as error:
        result = replace(base, verdict="unbuildable", reason=f"no reference: {error}")
    finally:
        if judge is not None:
            judge.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        model.train(was_training)
    return replace(result, seconds=round(time.perf_counter() - started, 3))


def _verdict(task: _Task, base: Validation, try_native: bool) -> Validation:
    native_reason: str | None = None
    if try_native:
        native = _native(task, base)
        if native.verdict == "native":
            return native
        native_reason = native.reason
    return replace(_adapted(task, base), native_reason=native_reason)


def _native(task: _Task, base: Validation) -> Validation:
    runner = Device(adapters=(), release=task.release) if isinstance(task.runner, Device) else task.runner
    return _attempt(task, base, lambda: runner(task.model, task.input_sets, task.pooling), lambda: (None, []), adapters={})


def _adapted(task: _Task, base: Validation) -> Validation:
    """Probe the stock modules, patch, run on the device, then compare in float64 (last, because most failures show on the device)."""
    batch = task.input_sets[0]
    with task.patch(task.model) as candidate:
        sites = _sites(candidate)
    probes = functions.probe_stock(task.model, functions.enclosing(functions.representatives(task.model, sites)), batch)
    adapters: dict[str, str] = {}

    def execute() -> Execution:
        with task.patch(task.model) as candidate:
            adapters.update(_hashes(candidate))
            return task.runner(candidate, task.input_sets, task.pooling)

    def exact() -> tuple[Recording, list[Check]]:
        # Patched anew: a runner that compiles takes the patch off with its compilation.
        with task.patch(task.model) as candidate:
            same = Check(
                name="same patch", passed=_hashes(candidate) == adapters, where="candidate", value=None, limit=None,
                detail="the patch compared in float64 is the one that ran",
            )  # fmt: skip
            recording = run_float64(candidate, task.input_sets, task.pooling)
            compared = functions.compare(candidate, functions.representatives(candidate, sites), probes, batch, task.thresholds)
            return recording, [same, *compared]

    return _attempt(task, base, execute, exact, adapters=adapters)


def _attempt(
    task: _Task,
    base: Validation,
    execute: Callable[[], Execution],
    exact: Callable[[], tuple[Recording | None, list[Check]]],
    *,
    adapters: dict[str, str],
) -> Validation:
    try:
        execution = execute()
    except Exception as error:  # noqa: BLE001 - whatever a candidate raises is a finding about it
        return _failed_run(replace(base, adapters=adapters), error)
    base = replace(base, adapters=adapters)
    try:
        recording, checks = exact()
    except Exception as error:  # noqa: BLE001
        return replace(base, reason=f"the patched model fails on the CPU: {_one_line(error)}", ladder="executed")
    found = conduct.checks(
        execution, calls=len(on_device(task.input_sets)), weights_before=task.weights_before, weights_after=weights_digest(task.model),
        weights_reference=task.judge.digest(),
    )  # fmt: skip
    judgement = task.judge.judge(Candidate(recording=execution.recording, exact=recording, conduct=(*found, *checks)))
    return _judged(base, execution, judgement, task.foreign_patch or bool(adapters))


def _failed_run(base: Validation, error: Exception) -> Validation:
    refused = unsupported_in(error)
    if refused is None:
        return replace(base, verdict="crashed", reason=_one_line(error))
    return replace(
        base, verdict="uncovered", reason=_refusal(refused), rule=refused.rule, op=refused.op, module_path=refused.module_path,
        source_line=refused.source_line, hint=refused.hint, ladder="traced",
    )  # fmt: skip


def _refusal(error: SpyreUnsupported) -> str:
    operands = ", ".join(f"{dtype.removeprefix('torch.')}{list(shape)}" for dtype, shape in zip(error.dtypes, error.shapes, strict=False))
    where = f" in {error.module_path}" if error.module_path else ""
    return f"{error.op}({operands}) [{error.rule}]{where}: {error.detail}".rstrip(": ")


def _judged(base: Validation, execution: Execution, judgement: Judgement, patched_at_all: bool) -> Validation:
    failed = judgement.failed
    decided = judgement.neighbours_decided
    result = replace(
        base, noise_floor=_finite(judgement.noise_floor), multiple=_finite(judgement.multiple), cosine_min=_finite(judgement.cosine_min),
        cosine_pooled=_finite(judgement.cosine_pooled), spearman=_finite(judgement.spearman),
        neighbours_kept=judgement.neighbours_kept / decided if decided else 1.0, equivalence_error=_finite(judgement.equivalence_error),
        fallbacks={f"{op} ({category})": count for (op, category), count in execution.fallbacks.items()}, launches=execution.launches,
        failed_checks=tuple(check.sentence() for check in failed), places=judgement.places,
    )  # fmt: skip
    if judgement.accepted:
        verdict: Literal["native", "adapted"] = "adapted" if patched_at_all else "native"
        reason = f"within {judgement.multiple:.2f} noise floors of stock (accepted: {base.floor_multiple:g})"
        return replace(result, verdict=verdict, reason=reason, ladder="real-weights" if base.weights == "real" else "accurate")
    if all(check.name == conduct.FALLBACK for check in failed):
        return replace(result, verdict="fallback", reason=f"right, but computed on the CPU: {failed[0].detail}", ladder="executed")
    first = next(check for check in failed if check.name != conduct.FALLBACK)
    path = first.where.partition("/")[2] or first.where
    known = dict(execution.recording.values)
    return replace(
        result, verdict="mismatch", reason=first.sentence(), module_path=path if any(k.endswith("/" + path) for k in known) else None, ladder="executed"
    )


def _hashes(candidate: nn.Module) -> dict[str, str]:
    state = patch_state(candidate)
    return {} if state is None else state.report.hashes


def _sites(candidate: nn.Module) -> list[str]:
    state = patch_state(candidate)
    return [] if state is None else list(dict.fromkeys(site.path for site in state.report.sites if site.path))


def _input_sets(model: nn.Module, inputs: Sequence[Mapping[str, Tensor]] | None, seed: int) -> tuple[InputSet, ...]:
    if inputs is None:
        return standard_sets(spec_of(model), seed)
    if not inputs or any("input_ids" not in batch for batch in inputs):
        raise ValidationInputError("inputs must hold at least one batch, each with input_ids [batch, length]")
    return tuple(InputSet(name=f"given{i}", kwargs=dict(batch), padding="none") for i, batch in enumerate(inputs))


def _check_arguments(model: Any, pooling: str, floor_multiple: float) -> None:
    if not isinstance(model, nn.Module):
        raise ValidationInputError(f"validate: expected a torch.nn.Module, got {type(model).__name__}; give the model object, not its name")
    if patch_state(model) is not None:
        raise ValidationInputError(f"{type(model).__name__} is patched; validate compares with the stock model, so call hf_adapters.unpatch(model) first")
    wrong = next(((n, p) for n, p in model.named_parameters() if p.is_floating_point() and (p.dtype != torch.float32 or p.device.type != "cpu")), None)
    if wrong is not None:
        raise ValidationInputError(f"{wrong[0]} is {wrong[1].dtype} on {wrong[1].device}; the reference is float32 on the CPU, so call model.float().cpu() first")
    if pooling not in POOLINGS:
        raise ValidationInputError(f"unknown pooling {pooling!r}; known are {', '.join(POOLINGS)}")
    if not floor_multiple >= 1:
        raise ValidationInputError(f"floor_multiple is {floor_multiple}; below 1 even the stock model would be rejected")


def _versions(chosen: capabilities.Capabilities) -> dict[str, str]:
    found = {"capabilities": chosen.fingerprint, "torch": torch.__version__}
    for name in ("transformers", "hf-adapters"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
