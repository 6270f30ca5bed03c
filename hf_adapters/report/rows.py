"""The input of every report: one plain row for each model of the ranking."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Evidence = Literal["exact", "inferred", "stand-in", "none"]

ACCEPTED = ("native", "adapted")
#: Every verdict a model can have, best first; "pending" marks models that no sweep has reached.
VERDICTS = ("native", "adapted", "fallback", "mismatch", "uncovered", "unbuildable", "crashed", "timed-out", "pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRow:
    """One model of the ranking with its current verdict.

    Attributes:
        rank: position in the ranking, from 1.
        downloads: downloads of the last 30 days, as the ranking gives them.
        model_id: Hub id, or None when the ranking carries none.
        family: `model_type` of the config.
        evidence: how the judged structure relates to the model: "exact" and "inferred" are the model's own structure
            (known, or concluded from counts and names), "stand-in" is the commonest structure of the same family,
            "none" is no structure.
        structure: structural signature, or None.
        profile_id: profile that was judged for the model, or None.
        verdict: one of `VERDICTS`.
        reason: one sentence for people; empty for accepted models.
        rule: stable id of the broken device rule, or of the cause ("remote-code"); None for accepted models.
        op: operation that blocks the model, or None.
        module_path: module in which it was found, or None.
        adapters: names of the adapters that were applied.
        weights: "real" or "random"; None when nothing was judged.
        simulated_us: simulated device time of the judged inputs in microseconds, or None.
    """

    rank: int
    downloads: int
    model_id: str | None
    family: str
    evidence: Evidence
    structure: str | None
    profile_id: str | None
    verdict: str
    reason: str = ""
    rule: str | None = None
    op: str | None = None
    module_path: str | None = None
    adapters: tuple[str, ...] = ()
    weights: str | None = None
    simulated_us: float | None = None

    @property
    def accepted(self) -> bool:
        """Whether the verdict is `native` or `adapted`."""
        return self.verdict in ACCEPTED

    @property
    def counted(self) -> bool:
        """Whether the model counts as covered: accepted, and judged on its own structure rather than on a stand-in."""
        return self.accepted and self.evidence in ("exact", "inferred")


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the rows come from.

    Attributes:
        ranking_source: such as "bundled snapshot" or "Hugging Face Hub".
        ranking_date: date of the ranking, ISO format.
        release: torch-spyre release that was emulated.
        run_id: the latest sweep, or None.
        run_finished: when it ended (ISO format, UTC), or None while it is unfinished.
        versions: package versions that the latest verdicts were made with.
        rule_titles: title of each device rule, for people.
    """

    ranking_source: str = "unknown"
    ranking_date: str = "unknown"
    release: str = "unknown"
    run_id: str | None = None
    run_finished: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    rule_titles: dict[str, str] = field(default_factory=dict)
