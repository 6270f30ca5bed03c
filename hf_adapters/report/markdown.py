"""The report as Markdown, for issues and pull requests."""

from __future__ import annotations

from hf_adapters.report import tables as text
from hf_adapters.report.summary import Summary


def render(summary: Summary) -> str:
    """Headline, context and every table."""
    parts = [
        "# Coverage of embedding models on Spyre",
        "",
        f"**{text.headline(summary)}**",
        "",
        text.context(summary),
        "",
    ]
    for table in text.tables(summary):
        if not table.rows:
            continue
        parts += [f"## {table.title}", ""]
        if table.note:
            parts += [table.note, ""]
        parts += [_line(table.headers), _line(tuple("---" for _ in table.headers))]
        parts += [_line(row) for row in table.rows]
        parts.append("")
    return "\n".join(parts)


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
