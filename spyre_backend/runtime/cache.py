"""Compiled programs kept on disk, one file for each digest.

The cache may vanish, fill its disk or be corrupted at any time: compiling then goes on without it, after one warning.
Only callers that ask for it (``strict=True``) get an error instead.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Final

from spyre_backend.errors import SpyreError
from spyre_backend.program import Program

ENVIRONMENT_VARIABLE: Final = "SPYRE_CACHE_DIR"
_KEY = re.compile(r"[0-9a-zA-Z_-]{8,128}")


class ProgramCacheError(SpyreError):
    """The program cache cannot be read or written: disk full, no permission, or not a directory."""

    code = "E_PROGRAM_CACHE"


class ProgramCacheWarning(UserWarning):
    """The program cache is not usable; programs are compiled again in each process."""


def default_directory() -> Path:
    """SPYRE_CACHE_DIR, else `spyre/programs` in the user's cache directory (XDG_CACHE_HOME or ~/.cache)."""
    chosen = os.environ.get(ENVIRONMENT_VARIABLE)
    if chosen:
        return Path(chosen).expanduser() / "programs"
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "spyre" / "programs"


class ProgramCache:
    """Programs on disk by key (by default their digest); any number of processes may share a directory."""

    def __init__(self, directory: Path | None = None) -> None:
        """A cache in `directory` (default: :func:`default_directory`), which is made when first written to."""
        self.directory = default_directory() if directory is None else directory
        self._warned = False
        self._lock = threading.Lock()

    def path(self, key: str) -> Path:
        """The file for `key`; ValueError if it is not a plain identifier of 8 to 128 characters."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a cache key")
        return self.directory / key[:2] / f"{key}.json"

    def get(self, key: str, *, strict: bool = False) -> Program | None:
        """The program stored under `key`, or None; a damaged entry is removed and counts as missing.

        Raises:
            ProgramCacheError: with `strict`, when the directory cannot be read.
        """
        path = self.path(key)
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            if isinstance(error, OSError):
                self._complain("read", error, strict)
            return None
        try:
            program = Program.from_json(text)
        except ValueError:
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        return program

    def put(self, program: Program, key: str | None = None, *, strict: bool = False) -> Path | None:
        """Store `program` (atomically: readers see the whole file or none) and return its path.

        Returns None after one warning when the disk is full or the directory not writable.

        Raises:
            ProgramCacheError: in that case with `strict`.
        """
        path = self.path(program.digest if key is None else key)
        try:
            _write_atomically(path, program.to_json())
        except OSError as error:
            self._complain("write", error, strict)
            return None
        return path

    def clear(self) -> int:
        """Remove every program; returns how many.  Raises ProgramCacheError if one cannot be removed."""
        removed = 0
        try:
            for path in self.directory.glob("??/*.json"):
                path.unlink(missing_ok=True)
                removed += 1
        except OSError as error:
            self._complain("clear", error, strict=True)
        return removed

    def _complain(self, verb: str, error: OSError, strict: bool) -> None:
        text = (
            f"cannot {verb} the program cache in {self.directory}: {error.strerror or error}; "
            f"free space there or set {ENVIRONMENT_VARIABLE} to a writable directory"
        )
        if strict:
            raise ProgramCacheError(text) from error
        with self._lock:
            first, self._warned = not self._warned, True
        if first:
            warnings.warn(f"{text}. Compiling goes on without it.", ProgramCacheWarning, stacklevel=3)


def _write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
