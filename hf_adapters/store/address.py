"""What `--db` may say, and how it is shown. Imports no database library."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable
from pathlib import Path

IN_MEMORY = ("", ":memory:")
_USER_INFO = re.compile(r"(://[^/?#\s]*?:)[^/?#\s]*(@)")
_IN_QUERY = re.compile(r"([?&](?:password|sslpassword)=)[^&#\s]*", re.IGNORECASE)
#: What people call PostgreSQL in addresses; the last one is what SQLAlchemy calls psycopg.
_POSTGRESQL = re.compile(r"^(?:postgres|postgresql)(?=://)")


def is_address(text: str) -> bool:
    """Whether this is a URL rather than a file."""
    return "://" in text


def full_address(text: str) -> str:
    """An address with the driver named: `postgres://` and `postgresql://` mean psycopg."""
    return _POSTGRESQL.sub("postgresql+psycopg", text)


def hide_password(text: str) -> str:
    """A file or address as messages and the database itself may show it: without a password."""
    return _IN_QUERY.sub(r"\1***", _USER_INFO.sub(r"\1***\2", text)) if is_address(text) else text


def command_line(arguments: Iterable[str]) -> str:
    """A command line that can be pasted into a shell, without passwords."""
    return shlex.join(hide_password(argument) for argument in arguments)


def sqlite_file(text: str) -> Path | None:
    """The file behind an address, or None for a server."""
    if not is_address(text):
        return Path(text)
    scheme, _, rest = text.partition("://")
    return Path(rest.removeprefix("/")) if scheme.startswith("sqlite") else None
