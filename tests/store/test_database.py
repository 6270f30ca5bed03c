"""Databases that cannot be used: each fault has its own error, which names the file, and nothing is lost."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hf_adapters.store import Store
from hf_adapters.store.errors import (
    DirectoryMissing,
    NotADatabase,
    NotOurDatabase,
    ReadOnlyStore,
    SchemaMissing,
    SchemaTooNew,
    StoreLocked,
    StoreUnreachable,
)
from hf_adapters.store.schema import newest_revision
from tests.store.conftest import PROFILES, RANKING, RELEASE, SOURCE, begin


def test_a_file_of_another_kind_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("these are my notes, not a database\n", encoding="utf-8")
    with pytest.raises(NotADatabase) as caught:
        Store(path)
    assert str(path) in str(caught.value)
    assert (caught.value.code, bool(caught.value.hint)) == ("E_STORE_NOT_SQLITE", True)
    assert path.read_text(encoding="utf-8").startswith("these are my notes")


def test_a_damaged_database_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "damaged.db"
    path.write_bytes(b"SQLite format 3\x00" + b"\xa5" * 5000)
    with pytest.raises(NotADatabase):
        Store(path).upgrade()


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(NotADatabase, match="is a folder"):
        Store(tmp_path)


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "no" / "such" / "sweep.db"
    with pytest.raises(DirectoryMissing) as caught:
        Store(path)
    assert "mkdir -p" in str(caught.value.hint)
    assert not path.parent.exists()


def test_a_write_protected_file_can_be_read_but_not_written(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with Store(path) as store:
        store.upgrade()
        store.put_ranking(RANKING, PROFILES, release=RELEASE)
    path.chmod(0o444)
    with Store(path) as store:
        assert len(store.current(release=RELEASE)) == 6
        assert store.upgrade() == (newest_revision(), newest_revision())
        with pytest.raises(ReadOnlyStore) as caught:
            begin(store)
    assert caught.value.code == "E_STORE_READ_ONLY"
    assert str(path) in str(caught.value)


def test_what_the_driver_calls_read_only_has_the_same_type(tmp_path: Path) -> None:
    path = tmp_path / "kept.db"
    with Store(path) as store:
        store.upgrade()
    with Store(f"sqlite:///file:{path}?mode=ro&uri=true") as store, pytest.raises(ReadOnlyStore):
        begin(store)


def test_a_locked_database_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    with Store(path, busy_timeout=0.1) as store:
        store.upgrade()
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreLocked) as caught:
            begin(store)
        assert caught.value.code == "E_STORE_LOCKED"
        other.execute("ROLLBACK")
        other.close()
        assert begin(store) == 1


def test_tables_are_never_made_behind_the_back(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with Store(path) as store, pytest.raises(SchemaMissing) as caught:
        store.current(release=RELEASE, source=SOURCE)
    assert "db upgrade" in str(caught.value.hint)
    assert not path.exists()


def test_an_empty_file_is_an_empty_database(tmp_path: Path) -> None:
    path = tmp_path / "empty.db"
    path.touch()
    with Store(path) as store:
        assert store.state() == "empty"
        assert store.upgrade() == (None, newest_revision())


def test_the_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    with Store(path) as store, pytest.raises(NotOurDatabase, match="orders"):
        store.upgrade()


def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "future.db"
    with Store(path) as store:
        store.upgrade()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    with Store(path) as store:
        with pytest.raises(SchemaTooNew, match="9999"):
            store.upgrade()
        with pytest.raises(SchemaTooNew):
            store.current(release=RELEASE, source=SOURCE)


@pytest.mark.parametrize("url", ["nonsense://x/y", "postgresql+nodriver://x/y", "://"])
def test_an_address_of_nothing_is_refused(url: str) -> None:
    with pytest.raises(StoreUnreachable):
        Store(url)


def test_a_path_and_its_url_are_the_same_database(tmp_path: Path) -> None:
    path = tmp_path / "one.db"
    with Store(path) as store:
        store.upgrade()
    with Store(f"sqlite:///{path}") as store:
        assert store.state() == "current"
        assert store.where == str(path)
