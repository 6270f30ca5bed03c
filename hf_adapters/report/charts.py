"""The charts of the HTML report."""

from __future__ import annotations

import plotly.graph_objects as go

from hf_adapters.report.summary import Summary

_MODELS, _DOWNLOADS, _LINE = "#2f6db5", "#d9822b", "#7a7a7a"
_MOST_BARS = 20


def cumulative_coverage(summary: Summary) -> go.Figure:
    """Share of models and of downloads accepted among the first N ranks, against N (logarithmic)."""
    ranks = [rank for rank, _, _ in summary.curve]
    figure = go.Figure()
    shares = (("models", 1, _MODELS), ("downloads", 2, _DOWNLOADS))
    for name, column, colour in shares:
        figure.add_scatter(
            x=ranks,
            y=[100 * point[column] for point in summary.curve],
            mode="lines",
            name=name,
            line={"color": colour, "width": 3},
            hovertemplate="first %{x} ranks: %{y:.1f} %<extra>" + name + "</extra>",
        )
    figure.update_xaxes(type="log", title="first N models by downloads", dtick=1)
    figure.update_yaxes(title="accepted, %", range=[0, 102])
    return _finish(figure)


def blocking_pareto(summary: Summary) -> go.Figure:
    """Models blocked by each operation, with the cumulative share of all blocked models."""
    entries = list(summary.blocking.items())[:_MOST_BARS]
    total = sum(figures["models"] for figures in summary.blocking.values())
    counts = [figures["models"] for _, figures in entries]
    cumulative = [100 * sum(counts[: index + 1]) / total for index in range(len(counts))] if total else []
    names = [op for op, _ in entries]
    figure = go.Figure()
    figure.add_bar(
        x=names,
        y=counts,
        name="models blocked",
        marker={"color": _MODELS},
        customdata=[figures["downloads"] for _, figures in entries],
        hovertemplate="%{x}: %{y} models, %{customdata:,} downloads<extra></extra>",
    )
    figure.add_scatter(
        x=names,
        y=cumulative,
        name="cumulative share, %",
        yaxis="y2",
        mode="lines+markers",
        line={"color": _DOWNLOADS},
    )
    figure.update_layout(
        yaxis={"title": "models blocked"}, yaxis2={"overlaying": "y", "side": "right", "range": [0, 102], "title": "%"}
    )
    return _finish(figure)


def _finish(figure: go.Figure) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        margin={"l": 60, "r": 60, "t": 20, "b": 60},
        legend={"orientation": "h", "y": 1.08},
        font={"family": "system-ui, sans-serif", "color": _LINE},
        height=420,
    )
    return figure
