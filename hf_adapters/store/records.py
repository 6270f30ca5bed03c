"""What goes into the store and what comes out of it, as plain dataclasses (no database objects leave it)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictRecord:
    """One verdict with its evidence, as `Store.record_verdict` takes it.

    Exactly one of `signature` (a structure) and `model_row_id` (a single model) is set. Times are seconds
    and simulated microseconds; `noise_floor` and `multiple` are those of the acceptance rule.
    """

    verdict: str
    reason: str
    release: str
    release_fingerprint: str
    fingerprint: str
    signature: str | None = None
    model_row_id: int | None = None
    ladder: str = "catalogued"
    rule: str | None = None
    op: str | None = None
    error_code: str | None = None
    module_path: str | None = None
    source_line: str | None = None
    hint: str | None = None
    noise_floor: float | None = None
    floor_multiple: float | None = None
    multiple: float | None = None
    cosine_min: float | None = None
    cosine_pooled: float | None = None
    spearman: float | None = None
    neighbours_kept: bool | None = None
    fallback_count: int = 0
    fallbacks: Mapping[str, Any] = field(default_factory=dict)
    simulated_us: float | None = None
    seconds: float | None = None
    weights: str = "random"
    weights_revision: str | None = None
    config_hash: str | None = None
    seed: int | None = None
    depth: str = "all"
    cut: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    adapters: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    trust: str = "emulated"
    details: Mapping[str, Any] = field(default_factory=dict)

    def values(self) -> dict[str, Any]:
        """Column values of the verdict row (floats that JSON and SQL cannot hold become None)."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredVerdict(VerdictRecord):
    """A verdict as read back, with its place in the store."""

    id: int
    run_id: int
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredModel:
    """One model as read back."""

    id: int
    source: str
    source_date: str | None
    key: str
    model_id: str | None
    revision: str | None
    rank: int | None
    downloads: int
    model_type: str
    family: str
    profile_id: str | None
    stand_in: bool
    match: str
    buildable: str
    pooling: str | None
    gated: bool
    no_profile_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentVerdict:
    """The current verdict of one model. `verdict` is None while the model's structure was not tried."""

    model: StoredModel
    signature: str | None
    stand_in: bool
    verdict: str | None
    reason: str
    evidence: StoredVerdict | None

    @property
    def accepted(self) -> bool:
        """True for `native` and `adapted`, stand-ins included (look at `stand_in`)."""
        return self.verdict in ("native", "adapted")


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureWork:
    """One structure that still needs a verdict, with its impact."""

    signature: str
    profile: Mapping[str, Any]
    models: int
    downloads: int
    best_rank: int
    family: str
    stand_in_only: bool

    @property
    def impact(self) -> int:
        """Models x downloads: what orders the work."""
        return self.models * max(self.downloads, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterRecord:
    """One version of one adapter. `drafter` is "human", "rewrite", or the name of a language model."""

    name: str
    hash: str
    summary: str = ""
    equivalence: str = ""
    rules: Sequence[str] = ()
    releases: Sequence[str] | None = None
    drafter: str = "human"
    trust: str = "unreviewed"

    def values(self) -> dict[str, Any]:
        """Column values of the adapter row."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRun:
    """One run as read back."""

    id: int
    started_at: datetime
    finished_at: datetime | None
    state: str
    command: str
    release: str
    fingerprint: str
    source: str
    source_date: str | None
    top: int | None
    options: Mapping[str, Any]
    versions: Mapping[str, str]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, str):
        # PostgreSQL holds no NUL, and no database holds half of a surrogate pair; output of workers may have both.
        return value.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
