"""Who works on what, among processes that share a database. A claim ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import IO, Protocol

from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError

from hf_adapters.store.engine import Database
from hf_adapters.store.tables import RUNS

_OFFSET_BITS = 62


class Claims(Protocol):
    """Claims of one process. Names are free text; the same name may be taken again by its holder."""

    def take(self, name: str) -> bool:
        """Claim a name; False when another process holds it."""
        ...

    def drop(self, name: str) -> None:
        """Let go of a name; nothing happens when it is not held."""
        ...

    def close(self) -> None:
        """Let go of everything."""
        ...


def claims_of(database: Database) -> Claims:
    """The kind of claims that fits a database."""
    if database.url.get_backend_name() == "postgresql":
        return ServerClaims(database)
    return FileClaims(database.path.with_name(database.path.name + "-claims")) if database.path else NoClaims()


class NoClaims:
    """For a database that no other process can see."""

    def take(self, name: str) -> bool:
        """Always possible."""
        return True

    def drop(self, name: str) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""


class FileClaims:
    """Locks on single bytes of an empty file next to an SQLite database; the last process removes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._held: set[str] = set()

    def take(self, name: str) -> bool:
        """Claim a name; False when another process holds it."""
        if name in self._held:
            return True
        while True:
            self._file = self._file or self._path.open("ab")
            if not _lock(self._file, 1, _number(name) >> (64 - _OFFSET_BITS)):
                return False
            if os.fstat(self._file.fileno()).st_nlink:
                self._held.add(name)
                return True
            # Whoever was last removed the file after it was opened here: claims in it are seen by nobody.
            self._file.close()
            self._file = None

    def drop(self, name: str) -> None:
        """Let go of a name; nothing happens when it is not held."""
        if name in self._held:
            assert self._file is not None
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, _number(name) >> (64 - _OFFSET_BITS))
            self._held.discard(name)

    def close(self) -> None:
        """Let go of everything, and remove the file if nobody else holds a claim."""
        if self._file is not None:
            if _lock(self._file, 0, 0) and os.fstat(self._file.fileno()).st_nlink:
                self._path.unlink(missing_ok=True)
            self._file.close()
        self._file = None
        self._held.clear()


class ServerClaims:
    """Advisory locks of one session of a PostgreSQL server, which the server drops with the session."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._schema = ""
        self._held: set[str] = set()

    def take(self, name: str) -> bool:
        """Claim a name; False when another process holds it.

        Raises:
            StoreUnreachable: the server does not answer.
        """
        if name not in self._held and self._ask("pg_try_advisory_lock", name):
            self._held.add(name)
        return name in self._held

    def drop(self, name: str) -> None:
        """Let go of a name; nothing happens when it is not held."""
        if name in self._held:
            self._held.discard(name)
            self._ask("pg_advisory_unlock", name)

    def close(self) -> None:
        """Let go of everything."""
        if self._connection is not None:
            # Back in the pool, the session would live on with its locks.
            self._connection.invalidate()
            self._connection.close()
        self._connection = None
        self._held.clear()

    def _ask(self, function: str, name: str) -> bool:
        """Call one of the server's functions; once more, without the old claims, when the connection broke."""
        with self._database.typed_errors():
            try:
                return bool(self._session().exec_driver_sql(f"SELECT {function}({self._key(name)})").scalar())
            except DBAPIError as error:
                self.close()
                if not error.connection_invalidated:
                    raise
            return bool(self._session().exec_driver_sql(f"SELECT {function}({self._key(name)})").scalar())

    def _session(self) -> Connection:
        if self._connection is None:
            session = self._database.engine.connect()
            self._connection = session.execution_options(isolation_level="AUTOCOMMIT")
            # Structures have the same names in every schema of a database.
            self._schema = str(session.exec_driver_sql("SELECT current_schema()").scalar())
        return self._connection

    def _key(self, name: str) -> str:
        """Two numbers of 32 bits: a space of keys apart from that of the writers' lock, which is one number."""
        number = _number(f"{self._schema}/{name}")
        halves = (number >> 32, number & 0xFFFF_FFFF)
        return ", ".join(str(half - (1 << 31)) for half in halves)


def bury_runs(connection: Connection, claims: Claims, source: str) -> None:
    """Mark the runs of a ranking as interrupted that are said to be running and whose process is gone."""
    running = select(RUNS.c.id).where(RUNS.c.state == "running", RUNS.c.source == source)
    for run_id in connection.execute(running).scalars().all():
        if claims.take(f"run/{run_id}"):
            connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(state="interrupted"))
            claims.drop(f"run/{run_id}")


def _number(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def _lock(file: IO[bytes], length: int, start: int) -> bool:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, length, start)
    except (BlockingIOError, PermissionError):
        return False
    return True
