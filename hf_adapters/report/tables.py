"""The tables of a report as text, shared by the formats for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_adapters.report.summary import PUBLISHED, Summary


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One table: a title, a sentence about how to read it, headers and rows of text."""

    title: str
    note: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def tables(summary: Summary, *, most: int | None = None) -> list[Table]:
    """All tables of a report, in reading order.

    Args:
        summary: the figures.
        most: longest table wanted; None keeps every line.
    """
    made = [
        _coverage(summary),
        _verdicts(summary),
        _families(summary),
        _adapters(summary),
        _adapter_sets(summary),
        _reasons(summary),
        _blocking(summary),
    ]
    if most is None:
        return made
    return [_shorten(table, most) for table in made]


def headline(summary: Summary) -> str:
    """The result in one sentence."""
    cover = summary.coverage[max(summary.coverage)]
    return (
        f"{cover.accepted:,} of {cover.models:,} models accepted ({percent(cover.models_share)}), "
        f"{percent(cover.downloads_share)} of downloads; {cover.stand_in:,} more through stand-ins only."
    )


def context(summary: Summary) -> str:
    """Where the figures come from, and the published result they may be held against."""
    source = summary.provenance
    return (
        f"Ranking: {source.ranking_source} of {source.ranking_date}. Emulated torch-spyre release: {source.release}. "
        f"Published result on real cards, for context: {PUBLISHED['covered']:,} of {PUBLISHED['models']:,} models "
        f"covered, {PUBLISHED['passing']:,} passing end to end, with {PUBLISHED['adapters']} adapters."
    )


def percent(share: float) -> str:
    """A share from 0 to 1 as a percentage; never rounds up to 100 %."""
    if 0.9995 <= share < 1:
        return "99.9 %"
    return f"{100 * share:.1f} %"


def _shorten(table: Table, most: int) -> Table:
    left_out = len(table.rows) - most
    if left_out <= 0:
        return table
    note = f"{table.note} {left_out} more lines in the HTML and JSON reports.".strip()
    return Table(title=table.title, note=note, headers=table.headers, rows=table.rows[:most])


def _coverage(summary: Summary) -> Table:
    rows = []
    for top, cover in summary.coverage.items():
        exact, inferred = cover.by_evidence["exact"], cover.by_evidence["inferred"]
        rows.append(
            (
                f"{top:,}",
                f"{cover.models:,}",
                f"{cover.accepted:,} ({percent(cover.models_share)})",
                percent(cover.downloads_share),
                f"{cover.accepted_native:,}",
                f"{cover.accepted_adapted:,}",
                f"{exact['models']:,}",
                f"{inferred['models']:,}",
                f"{cover.stand_in:,}",
                f"{cover.models - cover.judged:,}",
            )
        )
    return Table(
        title="Coverage",
        note=(
            "Accepted models were judged on their own structure, known exactly or inferred. "
            "Stand-ins are weaker evidence and not part of it."
        ),
        headers=(
            "top",
            "models",
            "accepted",
            "of downloads",
            "native",
            "adapted",
            "exact",
            "inferred",
            "stand-in only",
            "pending",
        ),
        rows=rows,
    )


def _verdicts(summary: Summary) -> Table:
    rows = [
        (name, f"{count:,}", f"{summary.verdicts_by_structure[name]:,}")
        for name, count in summary.verdicts.items()
        if count or summary.verdicts_by_structure[name]
    ]
    return Table(title="Verdicts", note="", headers=("verdict", "models", "structures"), rows=rows)


def _families(summary: Summary) -> Table:
    rows = [
        (
            family,
            f"{figures['models']:,}",
            f"{figures['accepted']:,}",
            f"{figures['stand_in']:,}",
            f"{figures['downloads']:,}",
            percent(figures["downloads_share"]),
        )
        for family, figures in summary.families.items()
    ]
    return Table(
        title="Families",
        note="By model_type of the config.",
        headers=("family", "models", "accepted", "stand-in only", "downloads", "accepted of downloads"),
        rows=rows,
    )


def _adapters(summary: Summary) -> Table:
    rows = [
        (
            name,
            f"{figures['models']:,}",
            f"{figures['accepted']:,}",
            f"{figures['accepted_alone']:,}",
            f"{figures['accepted_downloads']:,}",
        )
        for name, figures in summary.adapters.items()
    ]
    return Table(
        title="Adapters",
        note="Models that an adapter was applied to; most models need several.",
        headers=("adapter", "models", "accepted", "accepted with it alone", "downloads accepted"),
        rows=rows,
    )


def _adapter_sets(summary: Summary) -> Table:
    rows = [
        (
            ", ".join(found["adapters"]) or "none",
            f"{found['models']:,}",
            f"{found['downloads']:,}",
            f"{found['structures']:,}",
            ", ".join(found["families"]),
        )
        for found in summary.adapter_sets
    ]
    return Table(
        title="Adapters in combination",
        note="Accepted models by the adapters that they need together.",
        headers=("adapters", "models", "downloads", "structures", "families"),
        rows=rows,
    )


def _reasons(summary: Summary) -> Table:
    titles = summary.provenance.rule_titles
    rows = [
        (
            reason["verdict"],
            reason["rule"],
            f"{reason['models']:,}",
            f"{reason['downloads']:,}",
            titles.get(reason["rule"]) or reason["reason"],
            reason["example"] or "",
        )
        for reason in summary.reasons
    ]
    return Table(
        title="Why models fail",
        note="By verdict and rule.",
        headers=("verdict", "rule", "models", "downloads", "meaning", "example"),
        rows=rows,
    )


def _blocking(summary: Summary) -> Table:
    rows = [
        (
            op,
            ", ".join(figures["rules"]),
            f"{figures['models']:,}",
            f"{figures['downloads']:,}",
            f"{figures['structures']:,}",
            figures["example"] or "",
        )
        for op, figures in summary.blocking.items()
    ]
    return Table(
        title="Blocking operations",
        note="The operation at which each failing structure stops; behind it there may be others.",
        headers=("operation", "rules", "models", "downloads", "structures", "example"),
        rows=rows,
    )
