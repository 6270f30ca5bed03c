"""Open a database and turn what drivers raise into the typed errors of `errors.py`."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

from hf_adapters.store.address import IN_MEMORY, full_address, hide_password, is_address
from hf_adapters.store.errors import DirectoryMissing, NotADatabase, ReadOnlyStore, StoreUnreachable
from hf_adapters.store.translate import translate

_MAGIC = b"SQLite format 3\x00"
BUSY_TIMEOUT = 30.0
"""Seconds to wait for another process that holds the database locked."""
_CONNECT_TIMEOUT = 10
#: Key of the advisory lock that lets one writer at a time into a PostgreSQL database; a number of our own.
_WRITERS = 0x6866_6164_6170


class Database:
    """One database: its engine, what to call it in messages, and transactions with typed errors."""

    def __init__(self, url_or_path: str | Path, *, busy_timeout: float = BUSY_TIMEOUT) -> None:
        """Check the address; nothing is opened or created before the first transaction.

        Args:
            url_or_path: file of an SQLite database, or an SQLAlchemy URL.
            busy_timeout: seconds to wait for another process that holds the database locked.

        Raises:
            DirectoryMissing, NotADatabase, StoreUnreachable: see the classes.
        """
        self.url = _url(url_or_path)
        self.path = _file_of(self.url)
        self.where = str(self.path) if self.path else hide_password(self.url.render_as_string(hide_password=True))
        self.busy_timeout = busy_timeout
        if self.path is not None:
            _check_file(self.path)
        self.engine = _engine(self.url, busy_timeout)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees the database as it is now, whatever others write meanwhile."""
        with self.connected() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            else:
                connection.exec_driver_sql("BEGIN")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back by an exception. One process writes at a time.

        Raises:
            ReadOnlyStore: the file is write-protected (also for the superuser, whom the system would let write).
            StoreLocked: another process kept writing for longer than the busy timeout.
        """
        if self.path is not None and self.path.exists() and not self.path.stat().st_mode & _ANY_WRITE:
            raise ReadOnlyStore(
                f"the database {self.where} is write-protected",
                hint=f"`chmod u+w {self.path}`, or name another file with --db",
            )
        with self.connected() as connection:
            if connection.dialect.name == "postgresql":
                # Writers look before they insert, and the newest verdict is the one with the highest id: both need
                # that nobody else writes in between.
                connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(1000 * self.busy_timeout)}")
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITERS})")
            else:
                # Take the write lock at once: a lock upgraded in the middle cannot wait, it can only fail.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection
            connection.commit()

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """A connection; what was not committed is rolled back at the end.

        Raises:
            StoreUnreachable: the server does not answer, or does not let this user in.
        """
        with self.typed_errors(connecting=True):
            connection = self.engine.connect()
        with self.typed_errors(), connection:
            yield connection

    @contextmanager
    def typed_errors(self, *, connecting: bool = False) -> Iterator[None]:
        """Turns errors of the driver into those of `errors.py`; `connecting` as in `translate`."""
        try:
            yield
        except DBAPIError as error:
            typed = translate(error, self.where, connecting=connecting)
            if typed is None:
                raise
            raise typed from error

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def _url(url_or_path: str | Path) -> URL:
    text = str(url_or_path)
    if not is_address(text):
        return URL.create("sqlite", database=str(Path(text).expanduser()) if text not in IN_MEMORY else text)
    try:
        url = make_url(full_address(text))
        backend = url.get_backend_name()
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise StoreUnreachable(f"{hide_password(text)!r} is not the address of a database", hint=_EXAMPLES) from error
    if backend not in ("sqlite", "postgresql"):
        raise StoreUnreachable(f"{hide_password(text)!r} is neither SQLite nor PostgreSQL", hint=_EXAMPLES)
    return url


_EXAMPLES = "name a file, or an address such as postgresql://user@host/name"


def _file_of(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or (url.database or "") in IN_MEMORY or "uri" in url.query:
        return None
    assert url.database is not None
    return Path(url.database)


def _check_file(path: Path) -> None:
    if path.is_dir():
        raise NotADatabase(
            f"{path} is a folder, not a database", hint=f"name a file in it, such as {path / 'sweep.db'}"
        )
    if not path.parent.is_dir():
        raise DirectoryMissing(
            f"the folder {path.parent} of the database {path} does not exist", hint=f"`mkdir -p {path.parent}` first"
        )
    if path.exists() and path.stat().st_size:
        try:
            with path.open("rb") as file:
                head = file.read(len(_MAGIC))
        except PermissionError as error:
            raise StoreUnreachable(f"the database {path} may not be read ({error.strerror})") from error
        if head != _MAGIC:
            raise NotADatabase(
                f"{path} is not an SQLite database", hint="name another file with --db, or move this one away"
            )


def _engine(url: URL, busy_timeout: float) -> Engine:
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, connect_args={"timeout": busy_timeout})
        event.listen(engine, "connect", _prepare_sqlite)
        return engine
    # Without a limit, a host that swallows packets would hang the command for minutes.
    arguments: dict[str, Any] = {} if "connect_timeout" in url.query else {"connect_timeout": _CONNECT_TIMEOUT}
    try:
        # A sweep lives for hours: a connection that broke while idle is replaced, not reported.
        return create_engine(url, connect_args=arguments, pool_pre_ping=True)
    except ImportError as error:
        raise StoreUnreachable(
            f"the driver for {url.drivername} is not installed ({error})", hint="`pip install 'hf-adapters[postgres]'`"
        ) from error


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver would open transactions by itself, and too late; `writing` does it explicitly.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
