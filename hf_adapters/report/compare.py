"""Two or more releases beside each other: which adapters a release retires, which models it wins and loses."""

from __future__ import annotations

from collections.abc import Sequence

from hf_adapters.report.summary import Summary
from hf_adapters.report.tables import Table, percent


def comparison(summaries: Sequence[Summary]) -> list[Table]:
    """What changes from the first release to each later one.

    Args:
        summaries: of the same ranking, one for each release, in the order to be compared.

    Raises:
        ValueError: fewer than two.
    """
    if len(summaries) < 2:
        raise ValueError("a comparison takes the figures of at least two releases")
    return [_coverage(summaries), _adapters(summaries), _models(summaries)]


def _release(summary: Summary) -> str:
    return summary.provenance.release


def _coverage(summaries: Sequence[Summary]) -> Table:
    rows = []
    for summary in summaries:
        cover = summary.coverage[max(summary.coverage)]
        rows.append(
            (
                _release(summary),
                f"{cover.accepted:,}",
                percent(cover.downloads_share),
                f"{cover.accepted_native:,}",
                f"{cover.accepted_adapted:,}",
                f"{len(summary.adapters):,}",
            )
        )
    headers = ("release", "accepted", "of downloads", "native", "adapted", "adapters in use")
    return Table(title="Coverage by release", note="", headers=headers, rows=rows)


def _adapters(summaries: Sequence[Summary]) -> Table:
    names = sorted({name for summary in summaries for name in summary.adapters})
    rows = []
    for name in names:
        used = [summary.adapters.get(name, {}).get("accepted", 0) for summary in summaries]
        rows.append((name, *(f"{count:,}" for count in used), _fate(used, summaries)))
    return Table(
        title="Adapters by release",
        note="Accepted models that each adapter was applied to; a retired one is not applied any more.",
        headers=("adapter", *(_release(summary) for summary in summaries), "fate"),
        rows=rows,
    )


def _fate(used: Sequence[int], summaries: Sequence[Summary]) -> str:
    if used[0] and not used[-1]:
        since = next(index for index in range(len(used)) if not any(used[index:]))
        return f"retired by {_release(summaries[since])}"
    if used[-1] and not used[0]:
        return f"new in {_release(summaries[next(index for index, count in enumerate(used) if count)])}"
    return ""


def _models(summaries: Sequence[Summary]) -> Table:
    """Families in which models were won or lost between the first release and each later one."""
    first, rows = summaries[0], []
    before = {row.rank: row for row in first.rows}
    for later in summaries[1:]:
        changed: dict[str, list[int]] = {}
        for row in later.rows:
            old = before.get(row.rank)
            if old is not None and old.counted != row.counted:
                changed.setdefault(row.family, [0, 0])[0 if row.counted else 1] += 1
        for family, (won, lost) in sorted(changed.items(), key=lambda item: (-sum(item[1]), item[0])):
            rows.append((f"{_release(first)} -> {_release(later)}", family, f"{won:,}", f"{lost:,}"))
    headers = ("releases", "family", "models won", "models lost")
    return Table(title="Models won and lost", note="", headers=headers, rows=rows)
