"""The report as one self-contained HTML page: no network is needed to read it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from hf_adapters.report import charts
from hf_adapters.report import tables as text
from hf_adapters.report.rows import VERDICTS
from hf_adapters.report.summary import Summary

_MOST_MODELS = 500
_NUMBER = re.compile(r"[\d,.]+( %)?( \(.*\))?")
_LONG = 40
#: Columns whose cells are names from code.
_CODE = ("operation", "rule", "rules", "adapter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A table with what the page needs beyond its text: an id, and an attribute for the cells of each column."""

    name: str
    title: str
    note: str
    headers: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    styles: tuple[Markup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of all models, for the strip below the headline."""

    name: str
    label: str
    models: int


def render(summary: Summary) -> str:
    """Headline, charts, tables, the first models of the ranking and provenance as an HTML document."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hf_adapters.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    top = summary.coverage[max(summary.coverage)]
    return environment.get_template("report.html.j2").render(
        summary=summary,
        top=top,
        parts=_parts(summary),
        percent=text.percent,
        headline=text.headline(summary),
        context=text.context(summary),
        tables=[_shown(table) for table in text.tables(summary) if table.rows],
        code_columns=_CODE,
        verdicts=VERDICTS,
        models=summary.rows[:_MOST_MODELS],
        plotly_js=get_plotlyjs(),
        coverage_chart=_fragment(charts.cumulative_coverage(summary), "coverage-chart") if summary.curve else "",
        blocking_chart=_fragment(charts.blocking_pareto(summary), "blocking-chart") if summary.blocking else "",
    )


def _parts(summary: Summary) -> list[Part]:
    counts = {"native": 0, "adapted": 0, "stand-in": 0, "failed": 0, "pending": 0}
    for row in summary.rows:
        name = row.verdict if row.counted or row.verdict == "pending" else "stand-in" if row.accepted else "failed"
        counts[name] += 1
    labels = {"stand-in": "accepted through stand-ins only", "failed": "not accepted", "pending": "not tried yet"}
    return [Part(name=name, label=labels.get(name, name), models=count) for name, count in counts.items() if count]


def _shown(table: text.Table) -> Shown:
    return Shown(
        name=f"{table.title.lower().replace(' ', '-')}-table",
        title=table.title,
        note=table.note,
        headers=table.headers,
        rows=table.rows,
        styles=tuple(_style([row[index] for row in table.rows]) for index in range(len(table.headers))),
    )


def _style(column: Sequence[str]) -> Markup:
    """Numbers stand to the right, below a header that does, too; sentences get room."""
    if all(_NUMBER.fullmatch(cell) for cell in column):
        return Markup(' class="number"')
    return Markup(' class="long"') if max(len(cell) for cell in column) > _LONG else Markup("")


def _fragment(figure: go.Figure, name: str) -> str:
    fragment: str = figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        div_id=name,
        config={"displayModeBar": False, "responsive": True, "scrollZoom": False},
    )
    return fragment
