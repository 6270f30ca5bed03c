"""The report for a terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from hf_adapters.report import tables as text
from hf_adapters.report.compare import comparison
from hf_adapters.report.summary import Summary

_MOST_ROWS = 20
_PLAIN_WIDTH = 160


def renderable(summary: Summary, *, most: int | None = _MOST_ROWS) -> RenderableType:
    """The report as something that a rich console can print."""
    parts: list[RenderableType] = []
    for table in text.tables(summary, most=most):
        if table.rows:
            parts += [_table(table), Text("")]
    parts += [Text(text.headline(summary), style="bold"), Text(text.context(summary))]
    return Group(*parts)


def beside(summaries: Sequence[Summary]) -> RenderableType:
    """Several releases beside each other, for a rich console."""
    parts: list[RenderableType] = []
    for table in comparison(summaries):
        if table.rows:
            parts += [_table(table), Text("")]
    return Group(*parts)


def render(summary: Summary) -> str:
    """The report as plain text, for files and pipes."""
    console = Console(file=io.StringIO(), width=_PLAIN_WIDTH, color_system=None, force_terminal=False)
    console.print(renderable(summary))
    output = console.file
    assert isinstance(output, io.StringIO)
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def _table(table: text.Table) -> RichTable:
    made = RichTable(
        title=table.title, caption=table.note or None, box=box.SIMPLE, title_justify="left", caption_justify="left"
    )
    for index, header in enumerate(table.headers):
        numeric = all(row[index][:1].isdigit() for row in table.rows)
        made.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for row in table.rows:
        made.add_row(*(Text(cell) for cell in row))
    return made
