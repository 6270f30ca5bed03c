"""`hf-adapters adapters`: the catalogue."""

from __future__ import annotations

from typing import Annotated

import typer

from hf_adapters.commands._common import UserError, console, friendly

app = typer.Typer(help="The catalogue of adapters.", no_args_is_help=True, epilog="Example: hf-adapters adapters list")


@app.command("list", epilog="Example: hf-adapters adapters list")
@friendly
def list_() -> None:
    """List every adapter with its equivalence class and the device rules it works around."""
    from rich import box
    from rich.table import Table

    import hf_adapters

    table = Table(box=box.SIMPLE)
    for header in ("adapter", "equivalence", "releases", "rules", "summary"):
        table.add_column(header, overflow="fold")
    for adapter in hf_adapters.catalogue():
        releases = ", ".join(adapter.releases) if adapter.releases else "all"
        table.add_row(adapter.name, adapter.equivalence, releases, ", ".join(adapter.rules), adapter.summary)
    console().print(table)


@app.command("show", epilog="Example: hf-adapters adapters show gelu")
@friendly
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="Name of an adapter.")]) -> None:
    """Print one adapter: what it is for, and its source."""
    import inspect

    import hf_adapters

    catalogue = {adapter.name: adapter for adapter in hf_adapters.catalogue()}
    if name not in catalogue:
        raise UserError(f"there is no adapter {name!r}: choose one of {', '.join(catalogue)}")
    adapter = catalogue[name]
    typer.echo(f"{adapter.name}: {adapter.summary}")
    typer.echo(f"equivalence: {adapter.equivalence}")
    typer.echo(f"releases: {', '.join(adapter.releases) if adapter.releases else 'all'}")
    typer.echo(f"rules: {', '.join(adapter.rules)}\n")
    module = inspect.getmodule(adapter.apply)
    if module is not None:
        typer.echo(inspect.getsource(module))
