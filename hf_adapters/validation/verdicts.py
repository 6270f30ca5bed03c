"""From what happened to a candidate to its verdict."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from hf_adapters.validation import conduct
from hf_adapters.validation.faults import fault_behind
from hf_adapters.validation.runners import Execution
from hf_adapters.validation.types import Judgement, Validation
from hf_adapters.validation.unsupported import raised_by_device
from spyre_backend.errors import SpyreInternalError, SpyreUnsupported


def failed_run(base: Validation, error: Exception) -> Validation:
    """`uncovered` when the device refused something, else `crashed`: with the operator and its place in the model when
    the backend failed on one.

    Raises:
        Exception: the error itself, when a full or read-only disk is behind it.
    """
    if fault_behind(error) is not None:
        raise error
    raised = raised_by_device(error)
    if raised is None:
        return replace(base, verdict="crashed", reason=one_line(error))
    base = replace(base, op=raised.op, module_path=raised.module_path, source_line=raised.source_line, hint=raised.hint)
    if isinstance(raised, SpyreInternalError):
        return replace(base, verdict="crashed", reason=one_line(raised))
    return replace(base, verdict="uncovered", reason=_refusal(raised), rule=raised.rule, ladder="traced")


def _refusal(error: SpyreUnsupported) -> str:
    operands = ", ".join(
        f"{dtype.removeprefix('torch.')}{list(shape)}" for dtype, shape in zip(error.dtypes, error.shapes, strict=False)
    )
    where = f" in {error.module_path}" if error.module_path else ""
    return f"{error.op}({operands}) [{error.rule}]{where}: {error.detail}".rstrip(": ")


def judged(base: Validation, execution: Execution, judgement: Judgement, patched_at_all: bool) -> Validation:
    """The verdict of a run that came to an end, with its figures."""
    failed = judgement.failed
    decided = judgement.neighbours_decided
    result = replace(
        base,
        noise_floor=_finite(judgement.noise_floor),
        multiple=_finite(judgement.multiple),
        cosine_min=_finite(judgement.cosine_min),
        cosine_pooled=_finite(judgement.cosine_pooled),
        spearman=_finite(judgement.spearman),
        neighbours_kept=judgement.neighbours_kept / decided if decided else 1.0,
        equivalence_error=_finite(judgement.equivalence_error),
        fallbacks={f"{op} ({category})": count for (op, category), count in execution.fallbacks.items()},
        launches=execution.launches,
        simulated_us=execution.simulated_us,
        failed_checks=tuple(check.sentence() for check in failed),
        places=judgement.places,
    )
    if judgement.accepted:
        verdict: Literal["native", "adapted"] = "adapted" if patched_at_all else "native"
        reason = f"within {judgement.multiple:.2f} noise floors of stock (accepted: {base.floor_multiple:g})"
        return replace(
            result, verdict=verdict, reason=reason, ladder="real-weights" if base.weights == "real" else "accurate"
        )
    if all(check.name == conduct.FALLBACK for check in failed):
        return replace(
            result, verdict="fallback", reason=f"right, but computed on the CPU: {failed[0].detail}", ladder="executed"
        )
    first = next(check for check in failed if check.name != conduct.FALLBACK)
    path = first.where.partition("/")[2] or first.where
    known = dict(execution.recording.values)
    return replace(
        result,
        verdict="mismatch",
        reason=first.sentence(),
        module_path=path if any(k.endswith("/" + path) for k in known) else None,
        ladder="executed",
    )


def _finite(value: float) -> float | None:
    return value if value == value and abs(value) != float("inf") else None


def one_line(error: BaseException) -> str:
    """Class and message of an error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
