"""The attempts a validation makes: the stock model on the device, then the patched one there and in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from hf_adapters.patching import patch_state
from hf_adapters.validation import conduct, functions, verdicts
from hf_adapters.validation.functions import Patch
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.recording import Pooling, Recording
from hf_adapters.validation.reference import Candidate, Judge
from hf_adapters.validation.runners import Device, Execution, Runner, in_dtype, on_device, run_float64, weights_digest
from hf_adapters.validation.types import Check, Thresholds, Validation


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One call of `validate`, resolved."""

    model: nn.Module
    """Stock; patched only inside an attempt."""
    input_sets: tuple[InputSet, ...]
    pooling: Pooling
    thresholds: Thresholds
    release: str
    patch: Patch
    runner: Runner
    dtype: torch.dtype
    """Of the parameters on the device."""
    weights_before: str
    foreign_patch: bool
    """Whether the caller's own patch is applied, which leaves no report."""


def verdict(task: Task, judge: Judge, base: Validation, *, try_native: bool) -> Validation:
    """Run the attempts and return the verdict of the last one needed.

    Args:
        task: what to validate.
        judge: holds the reference values.
        base: the record to fill in.
        try_native: whether to try the stock model before the patched one.

    Raises:
        UnusableReference: the stock model's own values cannot serve as a reference.
    """
    native_reason: str | None = None
    if try_native:
        native = _native(task, judge, base)
        if native.verdict == "native":
            return native
        native_reason = native.reason
    return replace(_adapted(task, judge, base), native_reason=native_reason)


def _native(task: Task, judge: Judge, base: Validation) -> Validation:
    runner = task.runner
    if isinstance(runner, Device):
        runner = in_dtype(Device(adapters=(), release=task.release), task.dtype)
    return _attempt(
        task, judge, base, lambda: runner(task.model, task.input_sets, task.pooling), lambda: (None, []), adapters={}
    )


def _adapted(task: Task, judge: Judge, base: Validation) -> Validation:
    """The device first, because most failures show there, then float64."""
    adapters: dict[str, str] = {}
    sites: list[str] = []

    def execute() -> Execution:
        with task.patch(task.model) as candidate:
            adapters.update(_hashes(candidate))
            sites.extend(_sites(candidate))
            return task.runner(candidate, task.input_sets, task.pooling)

    return _attempt(task, judge, base, execute, lambda: _exact(task, adapters, sites), adapters=adapters)


def _exact(task: Task, adapters: dict[str, str], sites: list[str]) -> tuple[Recording, list[Check]]:
    """The patched model and its replaced modules in float64; patched anew, for compiling takes a patch off again."""
    batch = min(on_device(task.input_sets), key=lambda s: (s.kwargs["input_ids"].shape[0] == 1, s.tokens))
    with task.patch(task.model) as candidate:
        same = Check(
            name="same patch",
            passed=_hashes(candidate) == adapters,
            where="candidate",
            value=None,
            limit=None,
            detail="the patch compared in float64 is the one that ran",
        )
        recording = run_float64(candidate, task.input_sets, task.pooling)
    tried = functions.representatives(task.model, sites)
    return recording, [same, *functions.compare_sites(task.model, tried, task.patch, batch, task.thresholds)]


def _attempt(
    task: Task,
    judge: Judge,
    base: Validation,
    execute: Callable[[], Execution],
    exact: Callable[[], tuple[Recording | None, list[Check]]],
    *,
    adapters: dict[str, str],
) -> Validation:
    try:
        execution = execute()
    except Exception as error:
        return verdicts.failed_run(replace(base, adapters=adapters), error)
    base = replace(base, adapters=adapters)
    try:
        recording, checks = exact()
    except Exception as error:
        return replace(
            base, reason=f"the patched model fails on the CPU: {verdicts.one_line(error)}", ladder="executed"
        )
    found = conduct.checks(
        execution,
        calls=len(on_device(task.input_sets)),
        weights_before=task.weights_before,
        weights_after=weights_digest(task.model),
        weights_reference=judge.digest(),
    )
    judgement = judge.judge(
        Candidate(
            recording=execution.recording,
            exact=recording,
            multiplications=execution.multiplications,
            conduct=(*found, *checks),
        )
    )
    return verdicts.judged(base, execution, judgement, task.foreign_patch or bool(adapters))


def _hashes(candidate: nn.Module) -> dict[str, str]:
    state = patch_state(candidate)
    return {} if state is None else state.report.hashes


def _sites(candidate: nn.Module) -> list[str]:
    state = patch_state(candidate)
    return [] if state is None else list(dict.fromkeys(site.path for site in state.report.sites if site.path))
