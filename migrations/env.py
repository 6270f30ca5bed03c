"""Entry point of alembic: uses the connection that `hf_adapters.store.schema` hands over."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine
from sqlmodel import SQLModel

from hf_adapters.store import models

assert models.VerdictRow.__tablename__ in SQLModel.metadata.tables


def _run(connection: Connection) -> None:
    # SQLite cannot alter most things in place; batch mode copies the table instead.
    context.configure(connection=connection, target_metadata=SQLModel.metadata, render_as_batch=True)
    with context.begin_transaction():
        context.run_migrations()


def _main() -> None:
    given = context.config.attributes.get("connection")
    if isinstance(given, Connection):
        _run(given)
        return
    url = context.get_x_argument(as_dictionary=True).get("url") or context.config.get_main_option("sqlalchemy.url")
    if not url:
        raise SystemExit("no database: use `hf-adapters db upgrade`, or `alembic -x url=sqlite:///FILE ...`")
    with create_engine(url).connect() as connection:
        _run(connection)
        connection.commit()


_main()
