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

from hf_adapters.store.errors import (
    DirectoryMissing,
    NotADatabase,
    ReadOnlyStore,
    StoreUnreachable,
    translate,
)

_MAGIC = b"SQLite format 3\x00"
_IN_MEMORY = ("", ":memory:")


class Database:
    """One database: its engine, what to call it in messages, and transactions with typed errors."""

    def __init__(self, url_or_path: str | Path, *, busy_timeout: float = 10.0) -> None:
        """Check the address; nothing is opened or created before the first transaction.

        Args:
            url_or_path: file of an SQLite database, or an SQLAlchemy URL.
            busy_timeout: seconds to wait for another process that holds the database locked.

        Raises:
            DirectoryMissing, NotADatabase, StoreUnreachable: see the classes.
        """
        self.url = _url(url_or_path)
        self.path = _file_of(self.url)
        self.where = str(self.path) if self.path else self.url.render_as_string(hide_password=True)
        if self.path is not None:
            _check_file(self.path)
        self.engine = _engine(self.url, busy_timeout)

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that is rolled back at the end."""
        with self._typed_errors(), self.engine.connect() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction: committed at the end, rolled back by an exception.

        Raises:
            ReadOnlyStore: the file is write-protected (also for the superuser, whom the system would let write).
        """
        if self.path is not None and self.path.exists() and not self.path.stat().st_mode & _ANY_WRITE:
            raise ReadOnlyStore(
                f"the database {self.where} is write-protected",
                hint=f"`chmod u+w {self.path}`, or name another file with --db",
            )
        with self._typed_errors(), self.engine.begin() as connection:
            if connection.dialect.name == "sqlite":
                # Take the write lock at once: a lock upgraded in the middle cannot wait, it can only fail.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _typed_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            typed = translate(error, self.where)
            if typed is None:
                raise
            raise typed from error


_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def _url(url_or_path: str | Path) -> URL:
    text = str(url_or_path)
    if "://" not in text:
        return URL.create("sqlite", database=str(Path(text).expanduser()) if text not in _IN_MEMORY else text)
    try:
        url = make_url(text)
        url.get_dialect()
    except (ArgumentError, NoSuchModuleError) as error:
        raise StoreUnreachable(
            f"{text!r} is not the address of a database ({error})",
            hint="name a file, or an SQLAlchemy URL such as postgresql+psycopg://user@host/name",
        ) from error
    return url


def _file_of(url: URL) -> Path | None:
    if url.get_backend_name() != "sqlite" or (url.database or "") in _IN_MEMORY or "uri" in url.query:
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
    arguments: dict[str, Any] = {"timeout": busy_timeout} if url.get_backend_name() == "sqlite" else {}
    try:
        engine = create_engine(url, connect_args=arguments)
    except ImportError as error:
        raise StoreUnreachable(
            f"the driver for {url.drivername} is not installed ({error})", hint="`pip install 'hf-adapters[postgres]'`"
        ) from error
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # The driver would open transactions by itself, and too late; `writing` does it explicitly.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
