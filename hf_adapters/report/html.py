"""The report as one self-contained HTML page: no network is needed to read it."""

from __future__ import annotations

import jinja2
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from hf_adapters.report import charts
from hf_adapters.report import tables as text
from hf_adapters.report.summary import Summary

_MOST_MODELS = 500


def render(summary: Summary) -> str:
    """Headline, charts, tables, the first models of the ranking and provenance as an HTML document."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("hf_adapters.report"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    top = summary.coverage[max(summary.coverage)]
    return environment.get_template("report.html.j2").render(
        summary=summary,
        top=top,
        percent=text.percent,
        headline=text.headline(summary),
        context=text.context(summary),
        tables=[table for table in text.tables(summary) if table.rows],
        models=summary.rows[:_MOST_MODELS],
        plotly_js=get_plotlyjs(),
        coverage_chart=_fragment(charts.cumulative_coverage(summary), "coverage-chart"),
        blocking_chart=_fragment(charts.blocking_pareto(summary), "blocking-chart") if summary.blocking else "",
    )


def _fragment(figure: go.Figure, name: str) -> str:
    fragment: str = figure.to_html(
        full_html=False, include_plotlyjs=False, div_id=name, config={"displaylogo": False, "responsive": True}
    )
    return fragment
