"""Bring a database to the newest schema, or say why it cannot be used as it is."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect

from hf_adapters.store.errors import NotOurDatabase, SchemaMissing, SchemaTooNew

State = Literal["empty", "old", "current"]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(str(files("hf_adapters.migrations")))).replace("%", "%%"))
    return config


@cache
def _script() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def newest_revision() -> str:
    """The schema revision that this version of the code works with."""
    head = _script().get_current_head()
    assert head is not None, "the migrations folder has no revision"
    return head


def revision_of(connection: Connection) -> str | None:
    """The schema revision of a database, None for one without our tables."""
    return MigrationContext.configure(connection).get_current_revision()


def state_of(connection: Connection, where: str) -> State:
    """How the schema of a database relates to this version of the code.

    Raises:
        NotOurDatabase: it holds tables, but not ours.
        SchemaTooNew: it was written by a newer version.
    """
    revision = revision_of(connection)
    if revision is None:
        others = sorted(set(inspect(connection).get_table_names()) - {"alembic_version"})
        if others:
            raise NotOurDatabase(
                f"the database {where} belongs to another program (its tables: {', '.join(others[:5])})",
                hint="name another database with --db",
            )
        return "empty"
    if revision == newest_revision():
        return "current"
    if revision not in {script.revision for script in _script().walk_revisions()}:
        raise SchemaTooNew(
            f"the database {where} has schema {revision}, which this version of hf-adapters does not know "
            f"(its newest is {newest_revision()})",
            hint="upgrade hf-adapters, or name another database with --db",
        )
    return "old"


def require_current(connection: Connection, where: str) -> None:
    """Refuse to work with a database whose schema is not the newest.

    Raises:
        SchemaMissing: it has no tables yet, or older ones.
        NotOurDatabase, SchemaTooNew: see `state_of`.
    """
    state = state_of(connection, where)
    if state != "current":
        what = "has no tables yet" if state == "empty" else f"has an old schema ({revision_of(connection)})"
        raise SchemaMissing(f"the database {where} {what}", hint="run `hf-adapters db upgrade` for it first")


def upgrade(connection: Connection, where: str) -> tuple[str | None, str]:
    """Migrate to the newest schema; revision before and after. Does nothing when it is there already."""
    before = revision_of(connection)
    if state_of(connection, where) != "current":
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return before, newest_revision()


def downgrade(connection: Connection, revision: str) -> None:
    """Migrate back to an earlier revision ("base" removes every table)."""
    config = _config()
    config.attributes["connection"] = connection
    command.downgrade(config, revision)
