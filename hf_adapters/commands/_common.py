"""What the commands share: options, the database, and how mistakes are told."""

from __future__ import annotations

import errno
import functools
import os
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, ParamSpec, TypeVar

import typer

from hf_adapters.store.address import sqlite_file
from hf_adapters.validation.faults import fault_behind

if TYPE_CHECKING:
    from rich.console import Console

    from hf_adapters.store.store import Store

P = ParamSpec("P")
R = TypeVar("R")

DEBUG_VARIABLE = "HF_ADAPTERS_DEBUG"
DEFAULT_DATABASE = "hf-adapters.db"
_PLAIN_WIDTH = 160

Database = Annotated[
    str,
    typer.Option(
        "--db", metavar="FILE|URL", envvar="HF_ADAPTERS_DB", help="SQLite file, or postgresql://user@host/name."
    ),
]
Release = Annotated[
    str | None,
    typer.Option(
        "--backend-release", metavar="NAME", help="torch-spyre release to emulate (see: hf-adapters releases)."
    ),
]

Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", metavar="NAME", help="auto (by the range pass), float16 or bfloat16: the format on the device."
    ),
]


class UserError(Exception):
    """A mistake of the user's: the message says what, where and what to do; printed as one line, exit code 2."""


def dtype_name(name: str) -> str | None:
    """The name of the format that is forced; None for "auto".

    Raises:
        UserError: no such format.
    """
    if name not in ("auto", "float16", "bfloat16"):
        raise UserError(f"--dtype {name}: the device multiplies float16 and bfloat16; give one of these, or auto")
    return None if name == "auto" else name


def friendly(command: Callable[P, R]) -> Callable[P, R]:
    """Print errors of a command as one clear line instead of a traceback (HF_ADAPTERS_DEBUG=1 shows the traceback)."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.TyperException):
            raise
        except Exception as error:
            message, code = explain_error(error)
            if os.environ.get(DEBUG_VARIABLE):
                traceback.print_exc()
            print(f"error: {message}", file=sys.stderr)
            raise typer.Exit(code) from None

    return run


def explain_error(error: Exception) -> tuple[str, int]:
    """One line for people, and the exit code: 2 when the user can mend it, 3 when it is a defect of ours."""
    text = " ".join(str(error).split())
    hint = getattr(error, "hint", None)
    if isinstance(hint, str) and hint not in text:
        text = f"{text}: {hint}"
    if isinstance(error, UserError):
        return text, 2
    if isinstance(error, OSError):
        return _explain_os_error(error, text), 2
    if _is_expected(error):
        return text, 2
    if (fault := fault_behind(error)) is not None:
        return _explain_os_error(fault, str(fault)), 2
    return f"{type(error).__name__}: {text} (a defect of hf-adapters; {DEBUG_VARIABLE}=1 shows where)", 3


def _is_expected(error: Exception) -> bool:
    """Whether the error is of a type that this project raises on purpose (all of them carry a stable `code`)."""
    if isinstance(error, sqlite3.Error):
        return True
    own = type(error).__module__.partition(".")[0] in ("hf_adapters", "spyre_backend")
    return own and (isinstance(error, ValueError) or isinstance(getattr(error, "code", None), str))


def _explain_os_error(error: OSError, text: str) -> str:
    where = f" at {error.filename}" if error.filename else ""
    if error.errno == errno.ENOSPC:
        advice = (
            "free some, or move the caches with TORCHINDUCTOR_CACHE_DIR and SPYRE_CACHE_DIR, the database with --db"
        )
        return f"no space left on the device{where}: {advice}"
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
        return f"no permission to write{where}: choose another place or change its permissions"
    return text


def need_agents() -> None:
    """Refuse where the packages of the extra `agents` are missing.

    Raises:
        UserError: names what to install.
    """
    from importlib.util import find_spec

    missing = [name for name in ("langgraph", "libcst", "openai") if find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} is not installed: `pip install 'hf-adapters[agents]'`")


def console() -> Console:
    """A console for results: as wide as the terminal, wide enough for the tables where there is none."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)


def release_name(name: str | None) -> str:
    """The release that was asked for, checked; the process default when none was.

    Raises:
        UnknownRelease: there is no such release.
    """
    from spyre_backend import capabilities

    chosen = name or os.environ.get(capabilities.ENVIRONMENT_VARIABLE) or capabilities.DEFAULT_RELEASE
    capabilities.load(chosen)
    return chosen


@contextmanager
def open_store(database: str, *, create: bool = False) -> Iterator[Store]:
    """The store behind `--db`, closed afterwards.

    Args:
        database: file or URL.
        create: whether the database is made (or migrated) when needed.

    Raises:
        UserError: the file does not exist and is not to be created.
    """
    from hf_adapters.store import Store

    path = sqlite_file(database)
    if not create and path is not None and not path.exists():
        raise UserError(f"there is no database at {path}: run hf-adapters sweep --db {path}, or name another with --db")
    store: Store = Store(database)
    try:
        if create:
            store.upgrade()
        yield store
    finally:
        store.close()
