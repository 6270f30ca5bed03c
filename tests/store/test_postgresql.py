"""What only a server does: addresses, users and rights, and several processes at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hf_adapters.store import Store
from hf_adapters.store.address import command_line, hide_password, sqlite_file
from hf_adapters.store.errors import (
    NotOurDatabase,
    NotPermitted,
    ReadOnlyStore,
    StoreError,
    StoreLocked,
    StoreUnreachable,
)
from hf_adapters.store.records import AdapterRecord
from hf_adapters.store.schema import newest_revision
from tests.postgres import Server
from tests.store.conftest import PROFILES, RANKING, RELEASE, SOURCE, begin, record
from tests.store.test_verdicts import BERT, QWEN


@pytest.fixture(scope="module")
def address(postgres_server: Server) -> str:
    """A database with tables, which the tests of this module share."""
    found = postgres_server.address(postgres_server.new_database())
    with Store(found) as store:
        store.upgrade()
    return found


@pytest.fixture(scope="module")
def guest(postgres_server: Server) -> str:
    """A user who may connect and nothing else."""
    postgres_server.run("CREATE ROLE guest LOGIN")
    return "guest"


def fault(address: str, use: Callable[[Store], object] = Store.upgrade) -> StoreError:
    """The error that a use of a database ends with."""
    with pytest.raises(StoreError) as caught, Store(address) as store:
        use(store)
    return caught.value


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_usual_scheme_means_psycopg(address: str, scheme: str) -> None:
    with Store(address.replace("postgresql", scheme, 1)) as store:
        assert store.upgrade() == (newest_revision(), newest_revision())
        assert store.where.startswith("postgresql+psycopg://tester@/test")


def test_nobody_listens() -> None:
    pytest.importorskip("psycopg")
    error = fault("postgresql://someone:secret@127.0.0.1:9/sweeps")
    assert type(error) is StoreUnreachable
    assert "postgresql+psycopg://someone:***@127.0.0.1:9/sweeps cannot be opened" in str(error)
    assert "secret" not in str(error)
    assert "check host, port, user and database name" in str(error.hint)


def test_there_is_no_such_database_and_no_such_user(postgres_server: Server) -> None:
    error = fault(postgres_server.address("nowhere"))
    assert type(error) is StoreUnreachable
    assert 'database "nowhere" does not exist' in str(error)
    error = fault(postgres_server.address("postgres", user="stranger"))
    assert type(error) is StoreUnreachable
    assert 'role "stranger" does not exist' in str(error)


@pytest.mark.parametrize(
    "address",
    ["postgresql://h:port/x", "postgresql:///x?host=/nowhere&frob=1", "mysql://someone:secret@h/x", "mysql://h/x"],
    ids=["port", "option", "other", "other-without-user"],
)
def test_addresses_that_cannot_be_used(address: str) -> None:
    pytest.importorskip("psycopg")
    error = fault(address)
    assert type(error) is StoreUnreachable
    assert "secret" not in str(error)
    assert error.hint


def test_the_driver_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    error = fault("postgresql://h/x")
    assert type(error) is StoreUnreachable
    assert error.hint == "`pip install 'hf-adapters[postgres]'`"


def test_users_without_rights(postgres_server: Server, address: str, guest: str) -> None:
    name = address.partition("@/")[2].partition("?")[0]
    mine = postgres_server.address(name, user=guest)
    assert type(fault(mine)) is NotPermitted
    error = fault(postgres_server.address(postgres_server.new_database(), user=guest))
    assert type(error) is NotPermitted
    assert "GRANT" in str(error.hint)
    postgres_server.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {guest}", database=name)
    with Store(mine) as store:
        assert store.adapters() == []
    assert type(fault(mine, lambda store: store.put_adapters([AdapterRecord(name="a", hash="b")]))) is NotPermitted


def test_a_server_that_takes_no_writes(address: str) -> None:
    standby = f"{address}&options=-cdefault_transaction_read_only%3Don"
    error = fault(standby, lambda store: store.put_adapters([AdapterRecord(name="a", hash="b")]))
    assert type(error) is ReadOnlyStore
    assert "primary" in str(error.hint)


def test_the_tables_of_another_program_are_left_alone_and_a_schema_keeps_both(postgres_server: Server) -> None:
    name = postgres_server.new_database()
    postgres_server.run("CREATE TABLE orders (id int)", "CREATE SCHEMA sweeps", database=name)
    error = fault(postgres_server.address(name))
    assert type(error) is NotOurDatabase
    assert "orders" in str(error)
    with Store(postgres_server.address(name, options="-csearch_path%3Dsweeps")) as store:
        assert store.upgrade() == (None, newest_revision())


def test_a_writer_that_does_not_end_is_not_waited_for_for_ever(postgres_server: Server) -> None:
    address = postgres_server.new_schema()
    with Store(address) as patient, Store(address, busy_timeout=0.1) as hasty:
        patient.upgrade()
        with patient._writing():
            with pytest.raises(StoreLocked) as caught:
                begin(hasty)
            assert hasty.runs() == [], "readers wait for nobody"
        assert caught.value.code == "E_STORE_LOCKED"
        assert begin(hasty) == 1


def test_a_connection_that_broke_is_replaced(postgres_server: Server, address: str) -> None:
    with Store(address) as store:
        store.runs()
        others = "datname LIKE 'test%' AND pid <> pg_backend_pid()"
        postgres_server.run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")
        assert store.runs() == []


def test_a_reader_sees_one_moment(postgres_server: Server) -> None:
    address = postgres_server.new_schema()
    with Store(address) as reader, Store(address) as writer:
        writer.upgrade()
        writer.put_ranking(RANKING, PROFILES, release=RELEASE)
        with reader._reading() as connection:
            before = connection.exec_driver_sql("SELECT count(*) FROM runs").scalar()
            begin(writer)
            assert connection.exec_driver_sql("SELECT count(*) FROM runs").scalar() == before == 0


def test_many_at_once_start_from_nothing_and_lose_nothing(new_database: Callable[[], str]) -> None:
    found = new_database()

    def sweep(number: int) -> list[Any]:
        with Store(found) as store:
            store.upgrade()
            store.put_ranking(RANKING, PROFILES, release=RELEASE)
            run = begin(store, command=str(number))
            store.put_adapters([AdapterRecord(name="rotary", hash="a")])
            store.record_unbuildable(run, source=SOURCE, release=RELEASE, release_fingerprint="rf", fingerprint="f1")
            return [store.record_verdict(run, record(signature=name)) for name in (BERT, QWEN, BERT)]

    with ThreadPoolExecutor(6) as pool:
        numbers = [number for numbers in pool.map(sweep, range(6)) for number in numbers]
    with Store(found) as store:
        assert len(set(numbers)) == 18
        assert len(store.history(signature=BERT)) == 12
        assert len(store.runs()) == 6
        assert len(store.adapters()) == 1
        current = store.current(release=RELEASE, source=SOURCE)
        assert [item.verdict for item in current].count("unbuildable") == 2
        assert len(current) == 6


def test_passwords_are_never_shown() -> None:
    assert hide_password("postgresql://me:s/e:c%40ret@host/db") == "postgresql://me:s/e:c%40ret@host/db"
    assert hide_password("postgresql://me:sec:ret@host/db") == "postgresql://me:***@host/db"
    assert hide_password("postgresql://me@host/db?password=secret&x=1") == "postgresql://me@host/db?password=***&x=1"
    assert hide_password("postgresql://host:5432/a@b") == "postgresql://host:5432/a@b"
    assert hide_password("a file:x@y.db") == "a file:x@y.db"
    line = command_line(["hf-adapters", "sweep", "--db", "postgresql://me:secret@host/db?a=1&b=2", "--db=my file"])
    assert line == "hf-adapters sweep --db 'postgresql://me:***@host/db?a=1&b=2' '--db=my file'"
    assert sqlite_file("postgresql://host/db") is None
