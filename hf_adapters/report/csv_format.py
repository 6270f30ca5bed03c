"""The report as CSV: one line for each model, for spreadsheets."""

from __future__ import annotations

import csv
import io

from hf_adapters.report.summary import Summary

COLUMNS = (
    "rank",
    "downloads",
    "model_id",
    "family",
    "evidence",
    "profile_id",
    "structure",
    "verdict",
    "rule",
    "op",
    "module_path",
    "adapters",
    "weights",
    "simulated_us",
    "reason",
)


def render(summary: Summary) -> str:
    """A header and one line for each model, by rank; adapters are separated by blanks."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in summary.rows:
        values = [getattr(row, name) for name in COLUMNS]
        writer.writerow(
            [" ".join(value) if isinstance(value, tuple) else "" if value is None else value for value in values]
        )
    return text.getvalue()
