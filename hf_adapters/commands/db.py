"""`hf-adapters db`: the database's schema."""

from __future__ import annotations

import typer

from hf_adapters.commands._common import DEFAULT_DATABASE, Database, friendly

app = typer.Typer(
    help="Create or migrate the database.", no_args_is_help=True, epilog="Example: hf-adapters db upgrade --db sweep.db"
)


@app.callback()
def group() -> None:
    """Create or migrate the database."""


@app.command("upgrade", epilog="Example: hf-adapters db upgrade --db sweep.db")
@friendly
def upgrade(db: Database = DEFAULT_DATABASE) -> None:
    """Create the database, or bring its tables to the newest revision; what it holds is kept."""
    from hf_adapters.store import Store

    with Store(db) as store:
        before, after = store.upgrade()
        where = store.where
    if before == after:
        typer.echo(f"{where}: schema is up to date (revision {after})")
    else:
        typer.echo(f"{where}: schema upgraded from {before or 'nothing'} to revision {after}")
