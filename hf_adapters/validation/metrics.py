"""Differences between two recordings as figures; nothing here decides.

All inputs are CPU tensors; errors are computed in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Unusable:
    """Why a result cannot be compared at all."""

    place: str
    reason: str
    """`nan`, `inf`, `constant`, `shape` or `missing`."""
    detail: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """How the order of neighbours fares."""

    spearman: float
    """Rank correlation of the off-diagonal cosine similarities; 1.0 when there are fewer than two pairs."""
    neighbours_kept: int
    neighbours_decided: int
    """Rows whose nearest neighbour in the reference leads by more than the noise."""


def unusable(candidate: Tensor, reference: Tensor, valid: Tensor | None, place: str) -> Unusable | None:
    """Reject before comparing: wrong shape, NaN, infinity, or a vector whose entries are all the same where the
    reference's are not.

    Args:
        candidate: `[batch, length, hidden]` or `[batch, hidden]`.
        reference: same shape.
        valid: bool `[batch, length]`; None takes every vector.
        place: name for the message.
    """
    if candidate.shape != reference.shape:
        return Unusable(
            place=place, reason="shape", detail=f"{tuple(candidate.shape)} instead of {tuple(reference.shape)}"
        )
    rows, stock = vectors(candidate, valid), vectors(reference, valid)
    if bool(rows.isnan().any()):
        return Unusable(
            place=place, reason="nan", detail=f"{int(rows.isnan().any(-1).sum())} of {rows.shape[0]} vectors hold NaN"
        )
    if bool(rows.isinf().any()):
        return Unusable(
            place=place,
            reason="inf",
            detail=f"{int(rows.isinf().any(-1).sum())} of {rows.shape[0]} vectors hold an infinity",
        )
    flat = (rows.amax(-1) == rows.amin(-1)) & (stock.amax(-1) != stock.amin(-1))
    if rows.shape[-1] > 1 and bool(flat.any()):
        return Unusable(
            place=place, reason="constant", detail=f"{int(flat.sum())} of {rows.shape[0]} vectors are constant"
        )
    return None


def vector_errors(candidate: Tensor, reference: Tensor, valid: Tensor | None) -> Tensor:
    """Relative error `max|a - b| / max|b|` of each vector, float64 `[vectors]`; padding is left out. A zero reference
    vector divides by 1."""
    a, b = vectors(candidate, valid).double(), vectors(reference, valid).double()
    scale = b.abs().amax(-1)
    return (a - b).abs().amax(-1) / torch.where(scale > 0, scale, torch.ones_like(scale))


def vector_cosines(candidate: Tensor, reference: Tensor, valid: Tensor | None) -> Tensor:
    """Cosine of each vector with its reference, float64 `[vectors]`; padding is left out."""
    return torch.nn.functional.cosine_similarity(
        vectors(candidate, valid).double(), vectors(reference, valid).double(), dim=-1
    )


def similarities(pooled: Tensor) -> Tensor:
    """Cosine similarity matrix `[rows, rows]` of embeddings `[rows, hidden]`, float64."""
    unit = torch.nn.functional.normalize(pooled.double(), dim=-1)
    return unit @ unit.T


def ranking(candidate: Tensor, reference: Tensor, noise: float) -> Ranking:
    """Compare the order that two sets of embeddings `[rows, hidden]` give.

    Args:
        candidate: embeddings under test.
        reference: stock embeddings of the same rows.
        noise: similarity difference that the number format alone explains; a nearest neighbour that leads by less is
            undecided.
    """
    ours, stock = similarities(candidate), similarities(reference)
    rows = stock.shape[0]
    upper = torch.triu_indices(rows, rows, 1)
    pairs = upper.shape[1]
    spearman = _spearman(ours[upper[0], upper[1]], stock[upper[0], upper[1]]) if pairs >= 2 else 1.0
    kept = decided = 0
    for row in range(rows) if rows > 2 else ():
        others = [other for other in range(rows) if other != row]
        order = sorted(others, key=lambda other: -float(stock[row, other]))
        if float(stock[row, order[0]] - stock[row, order[1]]) > noise:
            decided += 1
            kept += max(others, key=lambda other: float(ours[row, other])) == order[0]
    return Ranking(spearman=spearman, neighbours_kept=kept, neighbours_decided=decided)


def vectors(values: Tensor, valid: Tensor | None) -> Tensor:
    """The vectors `[n, size]` of a result: real tokens only where `valid` says which they are."""
    if valid is not None and values.dim() == 3 and values.shape[:2] == valid.shape:
        return values[valid]
    return values.reshape(-1, values.shape[-1]) if values.dim() else values.reshape(1, 1)


def _spearman(a: Tensor, b: Tensor) -> float:
    ra, rb = _ranks(a), _ranks(b)
    ra, rb = ra - ra.mean(), rb - rb.mean()
    norm = float(ra.norm() * rb.norm())
    return float(ra @ rb) / norm if norm > 0 else 1.0


def _ranks(values: Tensor) -> Tensor:
    """Ranks from 0, ties averaged."""
    _, inverse, counts = torch.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    ranks: Tensor = ends - (counts.double() + 1) / 2
    return ranks[inverse]


def propagated(worst: Mapping[str, float], limit: float, growth: float) -> dict[str, float]:
    """The limit of float64 errors at each place, in the order in which a set's places were computed.

    A deep model with random weights multiplies the rounding of its first layer by a few times in every later one, so
    an honest patch leaves 1e-15 behind layer 0 and more than the limit behind layer 10. A layer that computes
    something else stands out against the place before it, by far more than `growth`.
    """
    limits: dict[str, float] = {}
    before: dict[str, float] = {}
    for key, error in worst.items():
        batch = key.partition("/")[0]
        limits[key] = max(limit, growth * before.get(batch, 0.0))
        before[batch] = max(error, before.get(batch, 0.0))
    return limits
