"""From rows to figures: every number in every report format comes from here."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hf_adapters.report.rows import VERDICTS, ModelRow, Provenance

TOPS = (10, 100, 1000, 10000)
#: The result published for these 10,000 models on real cards, shown beside ours as context.
PUBLISHED = {"models": 10000, "covered": 7960, "passing": 6804, "adapters": 13}
SCHEMA_VERSION = 1
_CURVE_POINTS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Coverage of the first `top` ranks.

    Attributes:
        models: ranked models among them.
        judged: models that have a verdict.
        accepted: models accepted on their own structure (exact or inferred), native and adapted together.
        accepted_native: those accepted unpatched.
        accepted_adapted: those accepted with adapters.
        stand_in: models accepted through a stand-in only; not part of `accepted`.
        downloads: downloads of all `models`.
        accepted_downloads: downloads of the accepted ones.
        downloads_share: `accepted_downloads / downloads`, 0 to 1.
        stand_in_downloads: downloads of the models behind `stand_in`.
        by_evidence: accepted models and downloads apart for "exact", "inferred" and "stand-in".
    """

    models: int
    judged: int
    accepted: int
    accepted_native: int
    accepted_adapted: int
    stand_in: int
    downloads: int
    accepted_downloads: int
    downloads_share: float
    stand_in_downloads: int
    by_evidence: dict[str, dict[str, int]]

    @property
    def models_share(self) -> float:
        """`accepted / models`, 0 to 1."""
        return self.accepted / self.models if self.models else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """All figures of a report; see docs/report.md for the JSON form."""

    provenance: Provenance
    generated: str
    coverage: dict[int, Coverage]
    verdicts: dict[str, int]
    verdicts_by_structure: dict[str, int]
    families: dict[str, dict[str, Any]]
    adapters: dict[str, dict[str, Any]]
    adapter_sets: list[dict[str, Any]]
    reasons: list[dict[str, Any]]
    blocking: dict[str, dict[str, Any]]
    curve: list[tuple[int, float, float]]
    rows: tuple[ModelRow, ...] = field(repr=False)


def summarise(
    rows: Iterable[ModelRow], provenance: Provenance | None = None, *, now: dt.datetime | None = None
) -> Summary:
    """Compute every figure of a report.

    Args:
        rows: one for each model; order does not matter.
        provenance: where they come from.
        now: time of the report; the present by default.
    """
    ordered = tuple(sorted(rows, key=lambda row: row.rank))
    now = now or dt.datetime.now(dt.UTC)
    structures = {row.structure: row.verdict for row in ordered if row.structure is not None}
    return Summary(
        provenance=provenance or Provenance(),
        generated=now.isoformat(timespec="seconds"),
        coverage={top: coverage([row for row in ordered if row.rank <= top]) for top in TOPS},
        verdicts=_count_verdicts(row.verdict for row in ordered),
        verdicts_by_structure=_count_verdicts(structures.values()),
        families=_families(ordered),
        adapters=_adapters(ordered),
        adapter_sets=_adapter_sets(ordered),
        reasons=_reasons(ordered),
        blocking=_blocking(ordered),
        curve=_curve(ordered),
        rows=ordered,
    )


def coverage(rows: Sequence[ModelRow]) -> Coverage:
    """Coverage of the given rows, all of them."""
    counted = [row for row in rows if row.counted]
    stand_in = [row for row in rows if row.accepted and not row.counted]
    downloads = sum(row.downloads for row in rows)
    accepted_downloads = sum(row.downloads for row in counted)
    return Coverage(
        models=len(rows),
        judged=sum(row.verdict != "pending" for row in rows),
        accepted=len(counted),
        accepted_native=sum(row.verdict == "native" for row in counted),
        accepted_adapted=sum(row.verdict == "adapted" for row in counted),
        stand_in=len(stand_in),
        downloads=downloads,
        accepted_downloads=accepted_downloads,
        downloads_share=accepted_downloads / downloads if downloads else 0.0,
        stand_in_downloads=sum(row.downloads for row in stand_in),
        by_evidence={
            evidence: _totals([row for row in rows if row.accepted and row.evidence == evidence])
            for evidence in ("exact", "inferred", "stand-in")
        },
    )


def _totals(rows: Sequence[ModelRow]) -> dict[str, int]:
    return {
        "models": len(rows),
        "downloads": sum(row.downloads for row in rows),
        "structures": len({row.structure for row in rows if row.structure is not None}),
    }


def _count_verdicts(verdicts: Iterable[str]) -> dict[str, int]:
    seen = list(verdicts)
    return {name: seen.count(name) for name in VERDICTS}


def _group(rows: Iterable[ModelRow], key: Callable[[ModelRow], Any]) -> list[tuple[Any, list[ModelRow]]]:
    """Groups by key, those with most models first, then by downloads and name."""
    groups: dict[Any, list[ModelRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return sorted(
        groups.items(), key=lambda item: (-len(item[1]), -sum(row.downloads for row in item[1]), str(item[0]))
    )


def _families(rows: Sequence[ModelRow]) -> dict[str, dict[str, Any]]:
    families = {}
    for family, members in _group(rows, lambda row: row.family):
        cover = coverage(members)
        families[family] = {
            "models": cover.models,
            "accepted": cover.accepted,
            "accepted_native": cover.accepted_native,
            "accepted_adapted": cover.accepted_adapted,
            "stand_in": cover.stand_in,
            "pending": cover.models - cover.judged,
            "downloads": cover.downloads,
            "accepted_downloads": cover.accepted_downloads,
            "downloads_share": cover.downloads_share,
        }
    return families


def _adapters(rows: Sequence[ModelRow]) -> dict[str, dict[str, Any]]:
    used: dict[str, list[ModelRow]] = {}
    for row in rows:
        for name in row.adapters:
            used.setdefault(name, []).append(row)
    figures = {}
    for name, members in sorted(used.items(), key=lambda item: (-len(item[1]), item[0])):
        # Rows that need this adapter and no other show what it is worth by itself.
        alone = [row for row in members if row.adapters == (name,) and row.counted]
        figures[name] = {
            **_totals(members),
            "accepted": sum(row.counted for row in members),
            "accepted_downloads": sum(row.downloads for row in members if row.counted),
            "accepted_alone": len(alone),
            "families": sorted({row.family for row in members}),
        }
    return figures


def _adapter_sets(rows: Sequence[ModelRow]) -> list[dict[str, Any]]:
    """Accepted models by the set of adapters that they need together; the empty set is native."""
    return [
        {"adapters": list(names), **_totals(members), "families": sorted({row.family for row in members})}
        for names, members in _group([row for row in rows if row.counted], lambda row: row.adapters)
    ]


def _reasons(rows: Sequence[ModelRow]) -> list[dict[str, Any]]:
    failed = [row for row in rows if not row.accepted and row.verdict != "pending"]
    return [
        {
            "verdict": verdict,
            "rule": rule,
            **_totals(members),
            "example": _example(members),
            "reason": members[0].reason,
        }
        for (verdict, rule), members in _group(failed, lambda row: (row.verdict, row.rule or row.verdict))
    ]


def _blocking(rows: Sequence[ModelRow]) -> dict[str, dict[str, Any]]:
    blocked = [row for row in rows if row.op is not None and not row.accepted]
    return {
        op: {
            **_totals(members),
            "rules": sorted({row.rule for row in members if row.rule is not None}),
            "verdicts": sorted({row.verdict for row in members}),
            "families": sorted({row.family for row in members}),
            "example": _example(members),
            "module_path": members[0].module_path,
        }
        for op, members in _group(blocked, lambda row: row.op)
    }


def _example(rows: Sequence[ModelRow]) -> str | None:
    return next((name for row in rows if (name := row.model_id or row.profile_id)), None)


def _curve(rows: Sequence[ModelRow]) -> list[tuple[int, float, float]]:
    """Points (rank, accepted share of models, accepted share of downloads), each over the ranks up to there."""
    points = []
    wanted = _log_spaced(len(rows))
    accepted = downloads = accepted_downloads = 0
    for num_models, row in enumerate(rows, 1):
        downloads += row.downloads
        if row.counted:
            accepted += 1
            accepted_downloads += row.downloads
        if num_models in wanted or num_models == len(rows):
            share = accepted_downloads / downloads if downloads else 0.0
            points.append((row.rank, accepted / num_models, share))
    return points


def _log_spaced(last: int) -> set[int]:
    """About `_CURVE_POINTS` positions from 1 to `last`, dense at the front where the downloads are."""
    if last <= _CURVE_POINTS:
        return set(range(1, last + 1))
    return {round(last ** (index / _CURVE_POINTS)) for index in range(_CURVE_POINTS + 1)}
