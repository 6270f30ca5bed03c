"""Answers of the report queries, as plain dataclasses that a renderer can print or dump to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class CoverageRow:
    """Coverage of the first `top` models.

    `accepted` counts models whose own profile was accepted; accepted stand-ins are in `stand_in` only.
    Shares are fractions (0 to 1) of models and of downloads in the first `top` rows.
    """

    top: int
    models: int
    accepted: int
    accepted_native: int
    accepted_adapted: int
    stand_in: int
    pending: int
    downloads: int
    downloads_accepted: int
    downloads_stand_in: int
    models_share: float
    downloads_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """Coverage within one family."""

    name: str
    models: int
    downloads: int
    accepted: int
    downloads_accepted: int
    stand_in: int
    verdicts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterUse:
    """How many accepted models depend on one adapter."""

    name: str
    hash: str
    summary: str
    equivalence: str
    rules: tuple[str, ...]
    drafter: str
    trust: str
    structures: int
    models: int
    downloads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRow:
    """Models that fail for one reason: verdict and rule (the rule is None where no device rule is to blame)."""

    verdict: str
    rule: str | None
    models: int
    downloads: int
    structures: int
    example_reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockingOperation:
    """One operation that stands between models and the device."""

    op: str
    rule: str | None
    verdict: str
    models: int
    downloads: int
    structures: int
    families: tuple[str, ...]
    hint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Cumulative coverage at one rank, stand-ins not counted."""

    rank: int
    accepted: int
    downloads: int
    downloads_accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything that a report shows, for one source and one release."""

    source: str
    source_date: str | None
    release: str
    release_fingerprint: str | None
    run_id: int | None
    models: int
    downloads: int
    structures: int
    coverage: Mapping[str, CoverageRow]
    verdicts: Mapping[str, int]
    families: tuple[GroupRow, ...]
    adapters: tuple[AdapterUse, ...]
    failures: tuple[FailureRow, ...]
    blocking: tuple[BlockingOperation, ...]
    curve: tuple[CurvePoint, ...]
    versions: Mapping[str, str]
