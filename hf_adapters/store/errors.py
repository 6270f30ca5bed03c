"""What can be wrong with a database, each with its own type and code."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from hf_adapters.errors import HfAdaptersError


class StoreError(HfAdaptersError):
    """The database cannot be used.

    Attributes:
        hint: what to do next, or None.
    """

    code = "E_STORE"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class NotADatabase(StoreError, ValueError):
    """The path leads to something that is not an SQLite database."""

    code = "E_STORE_NOT_SQLITE"


class NotOurDatabase(StoreError, ValueError):
    """A database, but of another program."""

    code = "E_STORE_FOREIGN"


class DirectoryMissing(StoreError, ValueError):
    """The folder that should hold the database does not exist."""

    code = "E_STORE_NO_DIRECTORY"


class ReadOnlyStore(StoreError):
    """The database may be read but not written."""

    code = "E_STORE_READ_ONLY"


class StoreLocked(StoreError):
    """Another process kept the database locked for longer than the busy timeout."""

    code = "E_STORE_LOCKED"


class DiskFull(StoreError):
    """There is no room left for the database."""

    code = "E_STORE_DISK_FULL"


class StoreUnreachable(StoreError):
    """The database server does not answer, or its driver is not installed."""

    code = "E_STORE_UNREACHABLE"


class SchemaMissing(StoreError):
    """The database has no tables yet, or tables of an older version."""

    code = "E_STORE_SCHEMA_OLD"


class SchemaTooNew(StoreError):
    """The database was written by a newer version of this project."""

    code = "E_STORE_SCHEMA_NEW"


class NoSuchRow(StoreError, LookupError):
    """Something was asked for that the store does not hold."""

    code = "E_STORE_NO_ROW"


class SourceAmbiguous(StoreError, ValueError):
    """The store holds several rankings and none was named."""

    code = "E_STORE_SOURCE"


_HINTS = {
    NotADatabase: "name another file with --db, or move this one away",
    ReadOnlyStore: "make the file and its folder writable, or name another file with --db",
    StoreLocked: "wait for the other run, or stop it; nothing was lost",
    DiskFull: "free some space and start again; what was recorded is kept",
}


def _sqlite_kind(code: int) -> type[StoreError] | None:
    primary = code & 0xFF
    return {
        sqlite3.SQLITE_NOTADB: NotADatabase,
        sqlite3.SQLITE_CORRUPT: NotADatabase,
        sqlite3.SQLITE_READONLY: ReadOnlyStore,
        sqlite3.SQLITE_PERM: ReadOnlyStore,
        sqlite3.SQLITE_BUSY: StoreLocked,
        sqlite3.SQLITE_LOCKED: StoreLocked,
        sqlite3.SQLITE_FULL: DiskFull,
        sqlite3.SQLITE_IOERR: DiskFull,
        sqlite3.SQLITE_CANTOPEN: StoreUnreachable,
    }.get(primary)


_WHAT = {
    NotADatabase: "is not an SQLite database",
    ReadOnlyStore: "cannot be written",
    StoreLocked: "is locked by another process",
    DiskFull: "cannot grow: the disk is full or failing",
    StoreUnreachable: "cannot be opened",
}


def translate(error: DBAPIError, where: str | Path) -> StoreError | None:
    """The typed error for what a driver raised, told by its numeric code; None if it is nobody's fault but ours."""
    code = getattr(error.orig, "sqlite_errorcode", None)
    kind: type[StoreError] | None
    if code is not None:
        kind = _sqlite_kind(int(code))
    else:
        kind = StoreUnreachable if error.connection_invalidated or _is_connect_failure(error) else None
    if kind is None:
        return None
    return kind(f"the database {where} {_WHAT[kind]} ({error.orig})", hint=_HINTS.get(kind))


def _is_connect_failure(error: DBAPIError) -> bool:
    # PostgreSQL drivers give no SQLSTATE when the connection itself never came about.
    return type(error).__name__ == "OperationalError" and getattr(error.orig, "sqlstate", None) is None
