"""Coverage reports: `summarise` computes the figures, one module for each format prints them."""

from __future__ import annotations

import importlib

from hf_adapters.report.rows import ModelRow, Provenance
from hf_adapters.report.summary import Coverage, Summary, summarise

FORMATS = {
    "terminal": "hf_adapters.report.terminal",
    "json": "hf_adapters.report.json_format",
    "html": "hf_adapters.report.html",
    "md": "hf_adapters.report.markdown",
    "csv": "hf_adapters.report.csv_format",
}

__all__ = ["FORMATS", "Coverage", "ModelRow", "Provenance", "Summary", "render", "summarise"]


def render(summary: Summary, output_format: str) -> str:
    """The report as text in one of `FORMATS`.

    Raises:
        ValueError: unknown format.
    """
    if output_format not in FORMATS:
        raise ValueError(f"unknown report format {output_format!r}: choose one of {', '.join(FORMATS)}")
    text: str = importlib.import_module(FORMATS[output_format]).render(summary)
    return text
