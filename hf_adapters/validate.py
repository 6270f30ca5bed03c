"""Accept or reject a model on the device: stock on the CPU against patched on the CPU against patched on the device.

    >>> verdict = hf_adapters.validate(model, weights="real")
    >>> verdict.verdict, verdict.noise_floor, verdict.multiple
    ('adapted', 0.0143, 1.1)

Acceptance has two halves and both must hold: in float64 the patched model and each replaced module equal the stock
ones; on the device every token, at every layer and at the pooled embedding, stays within `floor_multiple` times the
error that the stock model has in the device's number format. See `validation/acceptance.py`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hf_adapters.errors import HfAdaptersError
from hf_adapters.patching import patch_state, patched
from hf_adapters.validation.acceptance import UnusableReference
from hf_adapters.validation.attempts import Task, verdict
from hf_adapters.validation.functions import Patch
from hf_adapters.validation.inputs import InputSet, spec_of, standard_sets, structure_seed
from hf_adapters.validation.ranges import DTYPES, choose
from hf_adapters.validation.recording import POOLINGS, Pooling
from hf_adapters.validation.reference import (
    REPLY_SECONDS,
    STREAMED_REPLY_SECONDS,
    InlineJudge,
    Judge,
    ProcessJudge,
)
from hf_adapters.validation.runners import Device, Runner, in_dtype, on_device, weights_digest
from hf_adapters.validation.source import ModelSource
from hf_adapters.validation.streaming import stream_of
from hf_adapters.validation.types import Thresholds, Validation
from spyre_backend import capabilities


class ValidationInputError(HfAdaptersError, ValueError):
    """What was given to `validate` cannot be validated."""

    code = "E_VALIDATION_INPUT"


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
    dtype: torch.dtype | None = None,
) -> Validation:
    """Validate one stock model; it is left as it was.

    Args:
        model: stock, float32, on the CPU.
        inputs: batches of keyword arguments (`input_ids` int64 `[batch, length]`, ...); drawn from `seed` when None.
        release: torch-spyre release; the one in force when None.
        reference: `process` judges the reference values in a process of its own, `inline` here, which is quicker.
        floor_multiple: largest accepted error in noise floors.
        weights: what the verdict shall say of the weights.
        depth: what the verdict shall say of the depth.
        pooling: how a sentence vector is made of token vectors.
        source: how the reference process builds the model; written from `model` when None.
        patch: context manager that patches a model; `hf_adapters.patched` when None.
        runner: executes the candidate; `Device()` when None. With `Simulated()` no device and no compiler take part.
        try_native: whether the stock model is tried before the patched one; yes on the device when None.
        seed: seed of the inputs; from the structure when None. Give a secret one when the patch is not trusted.
        dtype: of the parameters on the device, float16 or bfloat16; chosen by a range pass when None. Recorded.

    Returns:
        The verdict and its evidence. Everything the device refuses is `uncovered`, not an exception.

    Raises:
        ValidationInputError: the model is patched, is not float32 on the CPU, or an argument is not usable.
        WeightRangeError: `dtype` is float16 and a weight does not fit into it.
    """
    started = time.perf_counter()
    check_arguments(model, pooling, floor_multiple, dtype)
    chosen = capabilities.load(release) if release else capabilities.current()
    native = try_native if try_native is not None else patch is None and (runner is None or isinstance(runner, Device))
    drawn = inputs is None
    seed = structure_seed(model) if seed is None else seed
    input_sets = _input_sets(model, inputs, seed)
    with capabilities.use(chosen.release), evaluating(model):
        precision = choose(model, on_device(input_sets), dtype)
    task = _task(model, chosen, input_sets, pooling, floor_multiple, patch, runner, DTYPES[precision.dtype])
    base = _record(task, chosen, reference=reference, weights=weights, depth=depth, seed=seed if drawn else None)
    base = replace(base, precision=precision)
    try:
        with capabilities.use(chosen.release), evaluating(model), _judge(reference, source, task) as judge:
            result = verdict(task, judge, base, try_native=native)
    except UnusableReference as error:
        result = replace(base, verdict="unbuildable", reason=f"no reference: {error}")
    return replace(result, seconds=round(time.perf_counter() - started, 3))


def _task(
    model: nn.Module,
    chosen: capabilities.Capabilities,
    input_sets: tuple[InputSet, ...],
    pooling: Pooling,
    floor_multiple: float,
    patch: Patch | None,
    runner: Runner | None,
    dtype: torch.dtype,
) -> Task:
    return Task(
        model=model,
        input_sets=input_sets,
        pooling=pooling,
        thresholds=Thresholds(floor_multiple=floor_multiple),
        release=chosen.release,
        patch=patch or (lambda m: patched(m, release=chosen.release)),
        foreign_patch=patch is not None,
        runner=in_dtype(runner or Device(release=chosen.release, watched=patch is not None), dtype),
        dtype=dtype,
        weights_before=weights_digest(model),
    )


def _record(
    task: Task,
    chosen: capabilities.Capabilities,
    *,
    reference: str,
    weights: str,
    depth: str,
    seed: int | None,
) -> Validation:
    """The record as far as it is known before anything has run."""
    return Validation(
        verdict="crashed",
        reason="",
        floor_multiple=task.thresholds.floor_multiple,
        weights=weights,
        depth=depth,
        seed=seed,
        inputs=", ".join(f"{s.name} {'x'.join(map(str, s.kwargs['input_ids'].shape))}" for s in task.input_sets),
        release=chosen.release,
        reference=reference,
        runner=task.runner.name,
        versions=_versions(chosen),
        ladder="built",
    )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; afterwards each module is in the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def _judge(where: str, source: ModelSource | None, task: Task) -> Iterator[Judge]:
    """The judge asked for; the file from which another process rebuilds the model lives as long as the judge."""
    settings = (task.input_sets, task.pooling, task.thresholds, task.release, task.dtype)
    if where == "inline":
        inline = InlineJudge(task.model, *settings)
        yield inline
        inline.close()
        return
    with TemporaryDirectory(prefix="hf-adapters-") as folder:
        patience = REPLY_SECONDS if stream_of(task.model) is None else STREAMED_REPLY_SECONDS
        judge = ProcessJudge(source or ModelSource.from_model(task.model, folder), *settings, patience)
        try:
            yield judge
        finally:
            judge.close()


def _input_sets(model: nn.Module, inputs: Sequence[Mapping[str, Tensor]] | None, seed: int) -> tuple[InputSet, ...]:
    if inputs is None:
        return standard_sets(spec_of(model), seed)
    if not inputs or any("input_ids" not in batch for batch in inputs):
        raise ValidationInputError("inputs must hold at least one batch, each with input_ids [batch, length]")
    return tuple(InputSet(name=f"given{i}", kwargs=dict(batch), padding="none") for i, batch in enumerate(inputs))


def check_arguments(model: Any, pooling: str, floor_multiple: float, dtype: torch.dtype | None = None) -> None:
    """Refuse what cannot be validated.

    Raises:
        ValidationInputError: the model is patched, is not float32 on the CPU, or an option has no such value.
    """
    if not isinstance(model, nn.Module):
        raise ValidationInputError(
            f"validate: expected a torch.nn.Module, got {type(model).__name__}; give the model object, not its name"
        )
    if patch_state(model) is not None:
        raise ValidationInputError(
            f"{type(model).__name__} is patched, and validate compares with the stock model; "
            "call hf_adapters.unpatch(model) first"
        )
    wrong = next(
        (
            (n, p)
            for n, p in model.named_parameters()
            if p.is_floating_point() and (p.dtype != torch.float32 or p.device.type != "cpu")
        ),
        None,
    )
    if wrong is not None:
        raise ValidationInputError(
            f"{wrong[0]} is {wrong[1].dtype} on {wrong[1].device}; the reference is float32 on the CPU, "
            "so call model.float().cpu() first"
        )
    if pooling not in POOLINGS:
        raise ValidationInputError(f"unknown pooling {pooling!r}; known are {', '.join(POOLINGS)}")
    if dtype is not None and dtype not in DTYPES.values():
        raise ValidationInputError(
            f"dtype is {dtype}; matrix products on the device are float16 or bfloat16 (D1.6), so give one of these, or "
            "None for the choice of the range pass"
        )
    if not floor_multiple >= 1:
        raise ValidationInputError(
            f"floor_multiple is {floor_multiple}; below 1 even the stock model would be rejected"
        )


def _versions(chosen: capabilities.Capabilities) -> dict[str, str]:
    found = {"capabilities": chosen.fingerprint, "torch": torch.__version__}
    for name in ("transformers", "hf-adapters"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


class _CallableModule(ModuleType):
    """Importing this file binds its name in the package, where `hf_adapters.validate` is the function: so the module
    can be called, too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Validation:
        return validate(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
