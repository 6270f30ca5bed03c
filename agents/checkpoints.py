"""Where the graph keeps its checkpoints: beside an SQLite database, inside a PostgreSQL one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from langgraph.checkpoint.base import BaseCheckpointSaver

from hf_adapters.errors import HfAdaptersError
from hf_adapters.store.address import full_address


class NoCheckpointer(HfAdaptersError):
    """Checkpoints cannot be kept for this kind of database."""

    code = "E_NO_CHECKPOINTER"


@contextmanager
def open_checkpointer(database: str) -> Iterator[BaseCheckpointSaver[str]]:
    """The checkpointer of a database (file or SQLAlchemy URL); its tables are made when missing.

    For an SQLite file `sweep.db` the checkpoints lie in `sweep.agents.db`: langgraph switches its file to write-ahead
    logging, which the database itself may not want.

    Raises:
        NoCheckpointer: the database is neither SQLite nor PostgreSQL.
    """
    scheme, separator, rest = database.partition("://")
    if not separator or scheme.startswith("sqlite"):
        path = Path(database if not separator else rest.removeprefix("/"))
        from langgraph.checkpoint.sqlite import SqliteSaver

        with SqliteSaver.from_conn_string(str(path.with_suffix(".agents.db"))) as saver:
            saver.setup()
            yield saver
    elif scheme.startswith("postgres"):
        from langgraph.checkpoint.postgres import PostgresSaver

        address = full_address(database)
        with PostgresSaver.from_conn_string("postgresql://" + address.partition("://")[2]) as server:
            server.setup()
            yield server
    else:
        raise NoCheckpointer(f"checkpoints are kept for SQLite and PostgreSQL, not for {scheme}")
