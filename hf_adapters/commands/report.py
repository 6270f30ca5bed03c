"""`hf-adapters report`: coverage, reasons and blocking operations of one database."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from hf_adapters.commands._common import (
    DEFAULT_DATABASE,
    Database,
    Release,
    console,
    friendly,
    open_store,
    release_name,
)


class Format(StrEnum):
    """Formats of the report."""

    TERMINAL = "terminal"
    JSON = "json"
    HTML = "html"
    MD = "md"
    CSV = "csv"


@friendly
def report(
    output_format: Annotated[
        Format, typer.Option("--format", help="terminal, json (docs/report.md), html, md or csv.")
    ] = Format.TERMINAL,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write to a file instead of printing.")
    ] = None,
    db: Database = DEFAULT_DATABASE,
    backend_release: Release = None,
    source: Annotated[
        str | None, typer.Option("--source", help="Ranking to report on; that of the newest run by default.")
    ] = None,
    top: Annotated[int | None, typer.Option("--top", min=1, help="Only the N most downloaded models.")] = None,
) -> None:
    """Report coverage by models and downloads, verdicts, families, adapters, reasons and blocking operations.

    Example: hf-adapters report --format json --output report.json --db sweep.db
    """
    from hf_adapters.report import render
    from hf_adapters.report.load import load_summary

    release = release_name(backend_release)
    with open_store(db) as store:
        summary = load_summary(store, release=release, source=source, top=top)
    if output is not None:
        output.write_text(render(summary, output_format.value), encoding="utf-8")
        typer.echo(f"wrote {output}", err=True)
    elif output_format is Format.TERMINAL:
        from hf_adapters.report.terminal import renderable

        console().print(renderable(summary))
    else:
        typer.echo(render(summary, output_format.value))
