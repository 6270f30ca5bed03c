"""From what a database driver raises to the types of `errors.py`, by its numeric code and never by its text."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from hf_adapters.store.errors import (
    DiskFull,
    NotADatabase,
    NotPermitted,
    ReadOnlyStore,
    StoreError,
    StoreLocked,
    StoreUnreachable,
)

_SQLITE = {
    sqlite3.SQLITE_NOTADB: NotADatabase,
    sqlite3.SQLITE_CORRUPT: NotADatabase,
    sqlite3.SQLITE_READONLY: ReadOnlyStore,
    sqlite3.SQLITE_PERM: ReadOnlyStore,
    sqlite3.SQLITE_BUSY: StoreLocked,
    sqlite3.SQLITE_LOCKED: StoreLocked,
    sqlite3.SQLITE_FULL: DiskFull,
    sqlite3.SQLITE_IOERR: DiskFull,
    sqlite3.SQLITE_CANTOPEN: StoreUnreachable,
}

#: SQLSTATE (https://www.postgresql.org/docs/15/errcodes-appendix.html), or its class of two characters.
_SQLSTATES = {
    "08": StoreUnreachable,  # connection exception
    "28": StoreUnreachable,  # invalid authorization specification
    "3D": StoreUnreachable,  # there is no such database
    "53": StoreUnreachable,  # insufficient resources, such as connections
    "57": StoreUnreachable,  # operator intervention: shut down, cancelled
    "53100": DiskFull,
    "58030": DiskFull,  # I/O error
    "25006": ReadOnlyStore,  # the transaction is read only: a standby, or a user set so
    "42501": NotPermitted,
    "3F000": NotPermitted,  # no schema to create in: none of the search path exists for this user
    "55P03": StoreLocked,  # lock not available within lock_timeout
    "40001": StoreLocked,  # serialization failure
    "40P01": StoreLocked,  # deadlock
}

_WHAT = {
    NotADatabase: "is not an SQLite database",
    ReadOnlyStore: "cannot be written",
    NotPermitted: "does not allow this user to do that",
    StoreLocked: "is locked by another process",
    DiskFull: "cannot grow: the disk is full or failing",
    StoreUnreachable: "cannot be opened",
}

_HINTS = {
    NotADatabase: "name another file with --db, or move this one away",
    ReadOnlyStore: "make the file and its folder writable, or name another file with --db",
    NotPermitted: "connect as its owner, or let the owner GRANT the rights (CREATE on the schema for `db upgrade`)",
    StoreLocked: "wait for the other run, or stop it; nothing was lost",
    DiskFull: "free some space and start again; what was recorded is kept",
}
_SERVER_HINTS = {
    ReadOnlyStore: "connect to the primary server, as a user who may write",
    StoreUnreachable: "check host, port, user and database name of the address; `createdb NAME` makes a database",
}


def translate(error: DBAPIError, where: str | Path, *, connecting: bool = False) -> StoreError | None:
    """The typed error for what a driver raised; None if it is nobody's fault but ours.

    Args:
        error: SQLAlchemy's wrapper around it.
        where: the database as messages name it.
        connecting: whether the connection was about to be made. PostgreSQL's library gives no code then.
    """
    sqlite_code = getattr(error.orig, "sqlite_errorcode", None)
    hints = _HINTS
    if sqlite_code is not None:
        kind = _SQLITE.get(int(sqlite_code) & 0xFF)
    else:
        state = getattr(error.orig, "sqlstate", None) or ""
        kind = _SQLSTATES.get(state) or _SQLSTATES.get(state[:2])
        if kind is None and (connecting or error.connection_invalidated):
            kind = StoreUnreachable
        hints = {**_HINTS, **_SERVER_HINTS}
    if kind is None:
        return None
    return kind(f"the database {where} {_WHAT[kind]} ({_said(error, connecting)})", hint=hints.get(kind))


def _said(error: DBAPIError, connecting: bool) -> str:
    """What the driver said, without the lines in which PostgreSQL quotes the statement."""
    lines = str(error.orig).split("\n") or ["no reason given"]
    return " ".join(" ".join(lines if connecting else lines[:1]).split())
