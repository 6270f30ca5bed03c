"""From a failing model to the failing operation, module and source line.

    >>> print(hf_adapters.diagnose(model, stock=True))
    refused: pow(x, 2) is not lowered in release 2026.07
      module path: layers.0.input_layernorm (Qwen3RMSNorm)
      ...

What the device refuses is located by the compiler and by the region it was compiling. Wrong numbers are located by
comparing layer by layer, then module by module inside the first layer that is off: in float64 first, which finds
wrong rewrites, then in units of the noise floor. What is right in float64 and off on the device is compiled again with
decisions of the compiler taken otherwise, until one of them flips the result: a bundle boundary, a resident, a layout
(`fused`), or, when nothing but computing one operation elsewhere helps, that operation (`inaccurate`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hf_adapters.patching import patched
from hf_adapters.validate import check_arguments, evaluating
from hf_adapters.validation.functions import Patch
from hf_adapters.validation.inputs import InputSet, draw, spec_of, structure_seed
from hf_adapters.validation.localise import Off, first_off, floor_limits, inside
from hf_adapters.validation.ranges import DTYPES, choose
from hf_adapters.validation.recording import Recording
from hf_adapters.validation.runners import Device, Runner, in_dtype, run_float64, run_floor, run_reference
from hf_adapters.validation.types import Thresholds
from hf_adapters.validation.unsupported import raised_by_device
from hf_adapters.validation.verdicts import one_line
from spyre_backend import capabilities
from spyre_backend.compiler.bisection import blame
from spyre_backend.errors import SpyreInternalError

Kind = Literal["refused", "wrong", "fused", "inaccurate", "failed", "none"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnosis:
    """What is wrong with a model on the device, and where."""

    kind: Kind
    """`refused`: cannot be compiled or run; `wrong`: the rewrite computes something else, seen in float64;
    `fused`: right in float64, and on the device as soon as `decision` is taken otherwise; `inaccurate`: right in
    float64, too far off on the device; `failed`: an error of another sort; `none`: nothing
    found."""
    message: str
    module_path: str | None = None
    """Path from the model's root, followed by the class in parentheses."""
    layer: str | None = None
    op: str | None = None
    rule: str | None = None
    rule_title: str | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    dtypes: tuple[str, ...] = ()
    source_line: str | None = None
    hint: str | None = None
    error: float | None = None
    """Relative error of the first module that is off."""
    limit: float | None = None
    error_before: float | None = None
    """Relative error of the last module before it."""
    decision: str | None = None
    """The compiler's decision that flips the result, and where it was taken."""
    runs: int = 0
    """How often the model ran until it was found."""

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.message}"]
        for name in ("module_path", "layer", "op", "rule", "source_line", "hint", "decision", "runs"):
            value = getattr(self, name)
            if value:
                lines.append(f"  {name.replace('_', ' ')}: {value}")
        if self.rule_title:
            lines.append(f"  rule says: {self.rule_title}")
        return "\n".join(lines)


def diagnose(
    model: nn.Module,
    inputs: Sequence[Mapping[str, Tensor]] | None = None,
    *,
    release: str | None = None,
    stock: bool = False,
    patch: Patch | None = None,
    runner: Runner | None = None,
    floor_multiple: float = 4.0,
    dtype: torch.dtype | None = None,
) -> Diagnosis:
    """Find the first thing that keeps a model from running right on the device; the model is left as it was.

    Args:
        model: stock, float32, on the CPU.
        inputs: batches of keyword arguments; two small ones are drawn when None.
        release: torch-spyre release; the one in force when None.
        stock: diagnose the model without any patch.
        patch: context manager that patches the model; `hf_adapters.patched` when None.
        runner: executes the candidate; `Device()` when None.
        floor_multiple: largest accepted error in noise floors.
        dtype: of the parameters on the device; chosen by a range pass when None, as in `hf_adapters.validate`.

    Raises:
        ValidationInputError: the model is patched, or not float32 on the CPU.
    """
    check_arguments(model, "mean", floor_multiple, dtype)
    chosen = capabilities.load(release) if release else capabilities.current()
    batches = _batches(model, inputs)
    execute = runner or Device(adapters=() if stock else None, release=chosen.release)

    def apply(candidate: nn.Module) -> Any:
        return nullcontext(candidate) if stock else (patch or _catalogue(chosen.release))(candidate)

    with capabilities.use(chosen.release), evaluating(model):
        dtype = DTYPES[choose(model, batches, dtype).dtype]
        execute = in_dtype(execute, dtype)
        try:
            with apply(model) as candidate:
                recording = execute(candidate, batches, "mean").recording
        except Exception as error:
            return of_error(error, chosen)
        return _of_numbers(model, batches, recording, apply, execute, Thresholds(floor_multiple=floor_multiple), dtype)


def _catalogue(release: str) -> Patch:
    return lambda model: patched(model, release=release)


def _batches(model: nn.Module, inputs: Sequence[Mapping[str, Tensor]] | None) -> list[InputSet]:
    if inputs is not None:
        return [InputSet(name=f"given{i}", kwargs=dict(batch), padding="none") for i, batch in enumerate(inputs)]
    spec, seed = spec_of(model), structure_seed(model)
    return [
        draw(spec, name="right", lengths=(19, 7), padding="right", seed=seed),
        draw(spec, name="left", lengths=(19, 7), padding="left", seed=seed + 1),
    ]


def of_error(error: Exception, chosen: capabilities.Capabilities) -> Diagnosis:
    """What an error of the device says; any other error is `failed`."""
    refused = raised_by_device(error)
    if refused is None:
        return Diagnosis(kind="failed", message=one_line(error))
    if isinstance(refused, SpyreInternalError):
        return Diagnosis(
            kind="failed",
            message=one_line(refused),
            module_path=refused.module_path,
            op=refused.op,
            source_line=refused.source_line,
            hint=refused.hint,
        )
    rule = chosen.rules.get(refused.rule)
    return Diagnosis(
        kind="refused",
        message=refused.detail or refused.op,
        module_path=refused.module_path,
        op=refused.op,
        rule=refused.rule,
        rule_title=None if rule is None else rule.title,
        shapes=refused.shapes,
        dtypes=refused.dtypes,
        source_line=refused.source_line,
        hint=refused.hint,
    )


def _of_numbers(
    model: nn.Module,
    batches: list[InputSet],
    recording: Recording,
    apply: Patch,
    execute: Runner,
    thresholds: Thresholds,
    dtype: torch.dtype,
) -> Diagnosis:
    exact = run_float64(model, batches, "mean")
    with apply(model) as candidate:
        exact_candidate = run_float64(candidate, batches, "mean")
    off = first_off(batches, exact_candidate, exact, dict.fromkeys(exact.values, thresholds.equivalence))
    if off is not None:
        within = inside(model, _named(batches, off), apply, off.place, thresholds, exact=True)
        return _of_place(model, "wrong", f"differs from stock in float64 from {off.place} on", off, within)
    reference, floor = run_reference(model, batches, "mean"), run_floor(model, batches, "mean", dtype).recording
    limits = floor_limits(floor, reference, thresholds, batches)
    off = first_off(batches, recording, reference, limits)
    if off is None:
        return Diagnosis(kind="none", message="runs, and every layer stays within the noise floor")
    batch = _named(batches, off)
    within = inside(model, batch, apply, off.place, thresholds, exact=False, dtype=dtype)
    multiple = off.error / off.limit * thresholds.floor_multiple
    message = f"{multiple:.3g} noise floors from stock at {off.place}, {thresholds.floor_multiple:g} are accepted"
    found = _of_place(model, "inaccurate", message, off, within)

    def wrong() -> bool:
        with apply(model) as candidate:
            again = execute(candidate, batches, "mean").recording
        return first_off(batches, again, reference, limits) is not None

    return _with_decision(found, wrong)


def _with_decision(found: Diagnosis, wrong: Callable[[], bool]) -> Diagnosis:
    """The same with the compiler's decision that flips the result."""
    try:
        blamed = blame(wrong)
    except ValueError:  # The second run was right: nothing that a compiler decides.
        return replace(found, message=f"{found.message}; right when it is run again")
    if blamed.decision is None:
        return replace(found, runs=blamed.runs)
    kind: Kind = "inaccurate" if blamed.decision.kind == "operation" else "fused"
    return replace(found, kind=kind, decision=str(blamed.decision), runs=blamed.runs)


def _named(batches: list[InputSet], off: Off) -> InputSet:
    return next(batch for batch in batches if batch.name == off.batch)


def _of_place(model: nn.Module, kind: Kind, message: str, off: Off, within: Off | None) -> Diagnosis:
    """`within` is the culprit when it is known; otherwise the layer is."""
    modules = dict(model.named_modules())
    found = Diagnosis(
        kind=kind, message=message, layer=off.place, error=off.error, limit=off.limit, error_before=off.before
    )
    culprit = within or off
    path = culprit.place.partition("#")[0]
    if path not in modules:
        return found
    described = f"{path} ({type(modules[path]).__name__})"
    return replace(found, module_path=described, error=culprit.error, limit=culprit.limit, error_before=culprit.before)


class _CallableModule(ModuleType):
    """As in `hf_adapters.validate`: the package's attribute of this name may be the module or the function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Diagnosis:
        return diagnose(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
