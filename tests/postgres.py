"""A throw-away PostgreSQL server: a fresh cluster in a temporary folder, reached through a socket in there."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "40",
}
_START_SECONDS = 60
#: Who runs the server when the tests run as root, which PostgreSQL refuses to be.
_UNPRIVILEGED = ("postgres", "nobody")


def binaries() -> Path | None:
    """The folder of `initdb`, of the newest version installed; None when there is none."""
    found = [Path(path).resolve().parent for path in (shutil.which("initdb"),) if path]
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found += sorted((path.parent for path in debian), key=lambda path: int(path.parent.name), reverse=True)
    return found[0] if found else None


def why_not() -> str | None:
    """Why no server can be started here; None when one can."""
    try:
        import psycopg  # noqa: F401
    except ImportError:
        return "psycopg is not installed (the extra 'postgres')"
    if binaries() is None:
        return "PostgreSQL is not installed (Debian: apt-get install postgresql)"
    if os.getuid() == 0 and _unprivileged() is None:
        return "PostgreSQL does not run as root, and there is no other user to run it as"
    return None


def _unprivileged() -> pwd.struct_passwd | None:
    for name in _UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    return None


@dataclass(slots=True)
class Server:
    """A running server.

    Attributes:
        folder: holds the cluster and its socket.
        process: the server.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def address(self, database: str, *, user: str = "tester", **parameters: str) -> str:
        """Address of a database on this server."""
        query = "&".join(f"{name}={value}" for name, value in {"host": str(self.folder), **parameters}.items())
        return f"postgresql://{user}@/{database}?{query}"

    def run(self, *statements: str, database: str = "postgres", user: str = "tester") -> list[tuple[object, ...]]:
        """Execute statements, each in a transaction of its own; rows of the last one."""
        import psycopg

        rows: list[tuple[object, ...]] = []
        with psycopg.connect(self.address(database, user=user), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def new_database(self) -> str:
        """Name of a new empty database."""
        name = f"test{next(self._numbers)}"
        self.run(f"CREATE DATABASE {name} TEMPLATE template0")
        return name

    def new_schema(self) -> str:
        """Address of a new empty schema, which is much quicker to make than a database and as good."""
        name = f"test{next(self._numbers)}"
        self.run(f"CREATE SCHEMA {name}")
        return self.address("postgres", options=f"-csearch_path%3D{name}")


@contextlib.contextmanager
def server() -> Iterator[Server]:
    """A server that ends with the block, and with this process if that is killed. `why_not` must have been asked."""
    where = binaries()
    assert where is not None
    folder = Path(tempfile.mkdtemp(prefix="hf-pg-", dir="/tmp"))
    owner = _unprivileged() if os.getuid() == 0 else None
    if owner is not None:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    try:
        _as_owner(owner, where / "initdb", "--pgdata", folder / "data", "--username=tester", "--auth=trust",
                  "--encoding=UTF8", "--no-locale", "--no-sync")  # fmt: skip
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        process = subprocess.Popen(
            [*_prefix(owner), where / "postgres", "-D", folder / "data", "-k", folder, *settings],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("wb"),
            cwd="/",
        )
        try:
            started = Server(folder=folder, process=process)
            _wait(started, where)
            yield started
        finally:
            process.send_signal(signal.SIGQUIT)  # "immediate shutdown"
            process.wait(_START_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(owner: pwd.struct_passwd | None) -> list[str]:
    """Changes to the owner, and lets the server die when its parent does."""
    change = [f"--reuid={owner.pw_uid}", f"--regid={owner.pw_gid}", "--clear-groups"] if owner else []
    return ["setpriv", *change, "--pdeathsig=QUIT"]


def _as_owner(owner: pwd.struct_passwd | None, *command: str | Path) -> None:
    done = subprocess.run([*_prefix(owner), *command], cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _wait(started: Server, where: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    ready = [where / "pg_isready", "--quiet", "--host", started.folder]
    while subprocess.run(ready).returncode != 0:
        log = (started.folder / "log").read_text(errors="replace")
        assert started.process.poll() is None, f"the server ended: {log}"
        assert time.monotonic() < deadline, f"the server does not start: {log}"
        time.sleep(0.05)
