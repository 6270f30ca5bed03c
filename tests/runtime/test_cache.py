"""The program cache on disk: round trips, damage, unusable directories."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from pathlib import Path

import pytest

from spyre_backend.runtime.cache import ProgramCache, ProgramCacheError, ProgramCacheWarning, default_directory
from tests.emulator.programs import unary

PROGRAM = unary("exp", 4)


def test_a_program_comes_back_as_it_was(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    assert cache.get(PROGRAM.digest) is None
    path = cache.put(PROGRAM)
    assert path is not None
    assert path.is_relative_to(tmp_path)
    assert cache.get(PROGRAM.digest) == PROGRAM
    assert ProgramCache(tmp_path).get(PROGRAM.digest) == PROGRAM


def test_a_key_of_ones_own(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    cache.put(PROGRAM, "graph-0123456789")
    assert cache.get("graph-0123456789") == PROGRAM
    assert cache.get(PROGRAM.digest) is None


@pytest.mark.parametrize("key", ["", "short", "../../etc/passwd", "a/b/c/d/e/f", "x" * 200])
def test_keys_that_are_no_identifiers_are_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ValueError, match="not a cache key"):
        ProgramCache(tmp_path).get(key)


@pytest.mark.parametrize("damage", [b"", b"{", b"[1, 2]", b'{"name": 1}', b"\xff\xfe\x00"])
def test_a_damaged_entry_counts_as_missing_and_is_replaced(tmp_path: Path, damage: bytes) -> None:
    cache = ProgramCache(tmp_path)
    path = cache.put(PROGRAM)
    assert path is not None
    path.write_bytes(damage)
    assert cache.get(PROGRAM.digest) is None
    cache.put(PROGRAM)
    assert cache.get(PROGRAM.digest) == PROGRAM


def test_an_unusable_directory_warns_once_and_goes_on(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    cache = ProgramCache(blocked)
    with pytest.warns(ProgramCacheWarning, match="cannot write the program cache in .*SPYRE_CACHE_DIR"):
        assert cache.put(PROGRAM) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert cache.put(PROGRAM) is None
        assert cache.get(PROGRAM.digest) is None
    with pytest.raises(ProgramCacheError, match="cannot write"):
        cache.put(PROGRAM, strict=True)
    with pytest.raises(ProgramCacheError, match="cannot read"):
        cache.get(PROGRAM.digest, strict=True)


def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    cache = ProgramCache(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(ProgramCacheWarning, match="No space left on device"):
        assert cache.put(PROGRAM) is None
    monkeypatch.undo()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert cache.put(PROGRAM) is not None


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_write_that_fails_midway_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    def on_full_disk(**kwargs: object) -> tuple[int, str]:
        return os.open("/dev/full", os.O_WRONLY), str(tmp_path / "none.tmp")

    monkeypatch.setattr(tempfile, "mkstemp", on_full_disk)
    with pytest.raises(ProgramCacheError, match="No space left"):
        ProgramCache(tmp_path).put(PROGRAM, strict=True)


def _write_many(directory: str) -> None:
    cache = ProgramCache(Path(directory))
    for _ in range(30):
        cache.put(PROGRAM, strict=True)
        assert cache.get(PROGRAM.digest, strict=True) == PROGRAM


def test_processes_may_share_a_directory(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork" if os.name == "posix" else "spawn")
    workers = [context.Process(target=_write_many, args=(str(tmp_path),)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]


def test_clearing_removes_everything(tmp_path: Path) -> None:
    cache = ProgramCache(tmp_path)
    cache.put(PROGRAM)
    cache.put(unary("log", 4))
    assert cache.clear() == 2
    assert cache.get(PROGRAM.digest) is None
    assert cache.clear() == 0


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPYRE_CACHE_DIR", str(tmp_path / "a"))
    assert default_directory() == tmp_path / "a" / "programs"
    monkeypatch.delenv("SPYRE_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert default_directory() == tmp_path / "b" / "spyre" / "programs"
