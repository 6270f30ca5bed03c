"""The charts of the HTML report."""

from __future__ import annotations

import math
from itertools import accumulate

import plotly.graph_objects as go

from hf_adapters.report.summary import Summary

# Each at least 4.5 : 1 against white.
_MODELS, _DOWNLOADS, _TEXT, _GRID = "#235a9c", "#a8560a", "#46525f", "#e6ebf0"
_MOST_BARS = 20
_BAR_HEIGHT = 34
_LONGEST_NAME = 26


def cumulative_coverage(summary: Summary) -> go.Figure:
    """Share of models and of downloads accepted among the first N ranks, against N (logarithmic)."""
    ranks = [rank for rank, _, _ in summary.curve]
    figure = go.Figure()
    for name, column, colour, dash in (("models", 1, _MODELS, "solid"), ("downloads", 2, _DOWNLOADS, "dash")):
        figure.add_scatter(
            x=ranks,
            y=[100 * point[column] for point in summary.curve],
            # A single point is no line.
            mode="lines" if len(ranks) > 1 else "markers",
            name=f"share of {name}",
            line={"color": colour, "width": 3, "dash": dash},
            hovertemplate="%{y:.1f} %<extra>" + name + "</extra>",
        )
    figure.update_xaxes(
        type="log",
        title="first N models by downloads",
        range=[0, math.log10(max(ranks, default=1)) + 0.03],
        dtick=1,
        tickformat=",d",
        hoverformat=",d",
        gridcolor=_GRID,
    )
    figure.update_yaxes(title="accepted, %", range=[0, 103], gridcolor=_GRID, zeroline=False, ticklabelstandoff=6)
    return _finish(figure, height=400)


def blocking_pareto(summary: Summary) -> go.Figure:
    """Models blocked by each operation, with the cumulative share of all blocked models."""
    entries = list(summary.blocking.items())[:_MOST_BARS]
    total = sum(figures["models"] for figures in summary.blocking.values())
    counts = [figures["models"] for _, figures in entries]
    # Positions rather than names: two operations may have the same short name.
    positions = list(range(len(entries)))
    figure = go.Figure()
    figure.add_bar(
        x=counts,
        y=positions,
        orientation="h",
        name="models blocked",
        marker={"color": _MODELS},
        customdata=[(op, figures["downloads"]) for op, figures in entries],
        hovertemplate="%{customdata[0]}: %{x:,} models, %{customdata[1]:,} downloads<extra></extra>",
    )
    figure.add_scatter(
        x=[100 * together / total for together in accumulate(counts)],
        y=positions,
        xaxis="x2",
        name="cumulative share",
        mode="lines+markers",
        line={"color": _DOWNLOADS, "width": 2, "dash": "dot"},
        marker={"size": 9, "line": {"color": "white", "width": 1.5}},
        hovertemplate="together %{x:.1f} % of the blocked models<extra></extra>",
    )
    figure.update_layout(
        xaxis={"title": "models blocked", "range": [0, 1.03 * max(counts, default=1)], "gridcolor": _GRID},
        xaxis2={
            "overlaying": "x",
            "side": "top",
            "range": [0, 103],
            "tickvals": [0, 25, 50, 75, 100],
            "title": "cumulative share, %",
            "showgrid": False,
            "zeroline": False,
        },
        yaxis={
            "tickvals": positions,
            "ticktext": [f"{_short(op)}  <b>{count:,}</b>" for (op, _), count in zip(entries, counts, strict=True)],
            "ticklabelstandoff": 6,
            "autorange": "reversed",
            "automargin": True,
            "showgrid": False,
        },
        bargap=0.35,
    )
    return _finish(figure, height=190 + _BAR_HEIGHT * len(entries), legend_below=True)


def _short(op: str) -> str:
    """A name that fits beside a bar; the table and the hover text have the whole of it."""
    name = op.removeprefix("aten.").removesuffix(".default")
    return name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _finish(figure: go.Figure, *, height: int, legend_below: bool = False) -> go.Figure:
    below = {"y": -70 / height, "yanchor": "top"} if legend_below else {"y": 1.02, "yanchor": "bottom"}
    figure.update_layout(
        template="plotly_white",
        margin={"l": 56, "r": 16, "t": 56 if legend_below else 32, "b": 90 if legend_below else 52},
        legend={"orientation": "h", "x": 0, **below},
        font={"family": "system-ui, sans-serif", "size": 13, "color": _TEXT},
        hovermode="closest" if legend_below else "x unified",
        dragmode=False,
        height=height,
    )
    return figure
