"""`hf-adapters db`: the database's schema."""

from __future__ import annotations

import typer

from hf_adapters.commands._common import DEFAULT_DATABASE, Database, friendly, open_store

app = typer.Typer(help="Create or migrate the database.", no_args_is_help=True, epilog="Example: hf-adapters db upgrade --db sweep.db")


@app.callback()
def group() -> None:
    """Create or migrate the database."""


@app.command("upgrade", epilog="Example: hf-adapters db upgrade --db sweep.db")
@friendly
def upgrade(db: Database = DEFAULT_DATABASE) -> None:
    """Create the database, or bring its tables to the newest revision; what it holds is kept."""
    with open_store(db, create=True) as store:
        typer.echo(f"{db}: schema at revision {store.revision()}")
