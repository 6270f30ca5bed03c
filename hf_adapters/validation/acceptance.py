"""The judge: candidate against reference, in units of the noise floor.

How floors are aggregated: at each place (the output of one repeated layer, the last hidden state, the pooled
embedding) the floor is the largest relative error that any real token of any input set has there when the stock model
runs in the device's number format; the largest candidate error there may reach `floor_multiple` times that, and the
root mean square of the candidate's errors `floor_multiple` times the root mean square of the floor's. The second
condition finds a small fault that sits in every token, the first a large one that sits in a single token. No floor is
taken lower than one rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hf_adapters.validation import metrics
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.recording import Recording
from hf_adapters.validation.types import Check, Judgement, PlaceFigures, Thresholds

POOLED = "pooled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """Everything the judge looks at."""

    input_sets: Sequence[InputSet]
    reference: Recording
    """Stock, float32, CPU."""
    floor: Recording
    """Stock, device number format, CPU."""
    candidate: Recording
    exact_reference: Recording
    """Stock, float64."""
    exact_candidate: Recording | None
    """Patched, float64, CPU; None when the candidate is the stock model itself."""
    single_candidate: Recording | None = None
    """Patched, float32, CPU; None where the adapters are trusted."""
    conduct: Sequence[Check] = ()
    """What the run itself was found to do (fallbacks, launches, weights); see `conduct.py`."""


class UnusableReference(Exception):
    """The stock model's own values cannot serve as a reference (NaN or infinity on the CPU)."""

    code = "E_REFERENCE_UNUSABLE"


def judge(evidence: Evidence, thresholds: Thresholds) -> Judgement:
    """Decide on one candidate.

    Raises:
        UnusableReference: the stock model yields NaN or infinities itself.
    """
    checks = list(evidence.conduct)
    checks += _usable(evidence.input_sets, evidence.candidate, evidence.reference)
    exact_error = 0.0
    if evidence.exact_candidate is not None:
        checks += _usable(evidence.input_sets, evidence.exact_candidate, evidence.exact_reference, prefix="float64 ")
        equivalence, exact_error = _equivalence(evidence, thresholds)
        checks += equivalence
    if evidence.single_candidate is not None:
        checks += _usable(evidence.input_sets, evidence.single_candidate, evidence.reference, prefix="float32 ")
    if any(not check.passed and check.name.endswith("usable") for check in checks):
        return _rejected(checks, exact_error)
    places = tuple(_figures(place, evidence, thresholds) for place in _places(evidence.reference))
    checks += [check for figures in places for check in _floor_checks(figures, thresholds)]
    if evidence.single_candidate is not None:
        checks += [_single_check(figures, evidence, evidence.single_candidate) for figures in places]
    ranking, ranking_floor, ranking_checks = _ranking(evidence, thresholds)
    checks += ranking_checks
    pooled = next(figures for figures in places if figures.place == POOLED)
    return Judgement(
        accepted=all(check.passed for check in checks),
        checks=tuple(checks),
        places=places,
        noise_floor=max(figures.floor for figures in places),
        multiple=max(figures.multiple for figures in places),
        cosine_min=min(figures.cosine_min for figures in places),
        cosine_pooled=pooled.cosine_min,
        spearman=ranking.spearman,
        spearman_floor=ranking_floor.spearman,
        neighbours_kept=ranking.neighbours_kept,
        neighbours_decided=ranking.neighbours_decided,
        equivalence_error=exact_error,
    )


def _places(recording: Recording) -> list[str]:
    return list(dict.fromkeys(key.partition("/")[2] for key in recording.values))


def _pairs(
    sets: Sequence[InputSet], candidate: Recording, reference: Recording
) -> list[tuple[str, Tensor | None, Tensor, Tensor | None]]:
    """(place in set, candidate or None when missing, reference, valid tokens) for each reference value."""
    masks = {batch.name: batch.valid for batch in sets}
    out: list[tuple[str, Tensor | None, Tensor, Tensor | None]] = []
    for key, stock in reference.values.items():
        ours = candidate.values.get(key)
        out.append((key, None if ours is None else _cut(ours, stock), stock, masks[key.partition("/")[0]]))
    return out


def _cut(candidate: Tensor, reference: Tensor) -> Tensor:
    """Cut what padding to sticks or buckets added behind the stock values in each dimension."""
    if candidate.dim() != reference.dim():
        return candidate
    return candidate[tuple(slice(0, size) for size in reference.shape)]


def _usable(sets: Sequence[InputSet], candidate: Recording, reference: Recording, prefix: str = "") -> list[Check]:
    checks = []
    for key, ours, stock, valid in _pairs(sets, candidate, reference):
        if not bool(metrics.vectors(stock, valid).isfinite().all()):
            raise UnusableReference(f"the stock model itself yields NaN or infinities at {key}")
        fault = None if ours is None else metrics.unusable(ours, stock, valid, key)
        if ours is None or fault is not None:
            detail = "no value was recorded" if fault is None else f"{fault.reason}: {fault.detail}"
            checks.append(Check(name=prefix + "usable", passed=False, where=key, value=None, limit=None, detail=detail))
    return checks or [Check(name=prefix + "usable", passed=True, where="everywhere", value=None, limit=None)]


def _equivalence(evidence: Evidence, thresholds: Thresholds) -> tuple[list[Check], float]:
    assert evidence.exact_candidate is not None
    worst: dict[str, float] = {}
    for key, ours, stock, valid in _pairs(evidence.input_sets, evidence.exact_candidate, evidence.exact_reference):
        if ours is not None and ours.shape == stock.shape:
            errors = metrics.vector_errors(ours, stock, valid)
            worst[key] = float(errors.nan_to_num(nan=float("inf")).amax()) if errors.numel() else 0.0
    failed = [
        Check(name="float64 equivalence", passed=False, where=key, value=worst[key], limit=limit)
        for key, limit in metrics.propagated(worst, thresholds.equivalence, thresholds.equivalence_growth).items()
        if not worst[key] <= limit
    ]
    error = max(worst.values(), default=0.0)
    return failed or [
        Check(name="float64 equivalence", passed=True, where="everywhere", value=error, limit=thresholds.equivalence)
    ], error


def _errors_at(
    place: str, sets: Sequence[InputSet], candidate: Recording, reference: Recording
) -> tuple[Tensor, Tensor]:
    errors, cosines = [], []
    for key, ours, stock, valid in _pairs(sets, candidate, reference):
        if key.partition("/")[2] == place and ours is not None:
            errors.append(metrics.vector_errors(ours, stock, valid))
            cosines.append(metrics.vector_cosines(ours, stock, valid))
    return torch.cat(errors), torch.cat(cosines)


def _rms(errors: Tensor) -> float:
    return float(errors.square().mean().sqrt())


def _figures(place: str, evidence: Evidence, thresholds: Thresholds) -> PlaceFigures:
    floor, _ = _errors_at(place, evidence.input_sets, evidence.floor, evidence.reference)
    floor = floor[floor.isfinite()]
    if not floor.numel():
        raise UnusableReference(
            f"the stock model overflows the device's number format at {place} for every token: there is no noise floor"
        )
    errors, cosines = _errors_at(place, evidence.input_sets, evidence.candidate, evidence.reference)
    return PlaceFigures(
        place=place,
        floor=max(float(floor.amax()), thresholds.floor_minimum),
        floor_rms=max(_rms(floor), thresholds.floor_minimum),
        error=float(errors.amax()),
        error_rms=_rms(errors),
        cosine_min=float(cosines.amin()),
    )


def _floor_checks(figures: PlaceFigures, thresholds: Thresholds) -> list[Check]:
    largest, mean = thresholds.floor_multiple * figures.floor, thresholds.floor_multiple * figures.floor_rms
    return [
        Check(
            name="token error", passed=figures.error <= largest, where=figures.place, value=figures.error, limit=largest
        ),
        Check(
            name="mean error",
            passed=figures.error_rms <= mean,
            where=figures.place,
            value=figures.error_rms,
            limit=mean,
        ),
    ]


def _single_check(figures: PlaceFigures, evidence: Evidence, single: Recording) -> Check:
    """In float32, which has 14 bits more than the device, a patched model stays below the floor itself."""
    errors, _ = _errors_at(figures.place, evidence.input_sets, single, evidence.reference)
    error = float(errors.amax())
    return Check(
        name="float32 equivalence", passed=error <= figures.floor, where=figures.place, value=error, limit=figures.floor
    )


def _ranking(evidence: Evidence, thresholds: Thresholds) -> tuple[metrics.Ranking, metrics.Ranking, list[Check]]:
    """Neighbours over the rows of all sets together: more pairs, and rows that one batch would never compare."""
    stock, floor, ours = (
        _all_pooled(r, evidence.input_sets) for r in (evidence.reference, evidence.floor, evidence.candidate)
    )
    moved = float((metrics.similarities(floor) - metrics.similarities(stock)).abs().nan_to_num().amax())
    noise = 2.0 * thresholds.floor_multiple * moved
    ranking, ranking_floor = metrics.ranking(ours, stock, noise), metrics.ranking(floor, stock, noise)
    least = min(thresholds.spearman, 1.0 - thresholds.floor_multiple * (1.0 - ranking_floor.spearman))
    return (
        ranking,
        ranking_floor,
        [
            Check(
                name="rank correlation",
                passed=ranking.spearman >= least,
                where=POOLED,
                value=ranking.spearman,
                limit=least,
            ),
            Check(
                name="nearest neighbours",
                passed=ranking.neighbours_kept == ranking.neighbours_decided,
                where=POOLED,
                value=float(ranking.neighbours_kept),
                limit=float(ranking.neighbours_decided),
                detail="rows whose nearest neighbour is kept, of those decided by more than the noise",
            ),
        ],
    )


def _all_pooled(recording: Recording, sets: Sequence[InputSet]) -> Tensor:
    return torch.cat([recording.values[f"{batch.name}/{POOLED}"] for batch in sets if batch.use != "float64"])


def _rejected(checks: Sequence[Check], exact_error: float) -> Judgement:
    nothing: Mapping[str, float] = dict.fromkeys(
        ("noise_floor", "multiple", "cosine_min", "cosine_pooled", "spearman", "spearman_floor"), float("nan")
    )
    return Judgement(
        accepted=False,
        checks=tuple(checks),
        places=(),
        neighbours_kept=0,
        neighbours_decided=0,
        equivalence_error=exact_error,
        **nothing,
    )
