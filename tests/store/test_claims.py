"""Claims: who works on what, among processes; none outlives its process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_adapters.store import Store
from hf_adapters.store.address import sqlite_file
from hf_adapters.store.claims import FileClaims, ServerClaims
from tests.cli.conftest import ROOT, SEARCH_PATH
from tests.postgres import Server
from tests.store.conftest import RELEASE, SOURCE, begin, record
from tests.store.test_verdicts import BERT, QWEN

OTHER = f"""
import sys
from hf_adapters.store import Store
store = Store(sys.argv[1])
run = store.begin_run(release="{RELEASE}", fingerprint="f1", source="{SOURCE}")
assert store.claim("{BERT}", release="{RELEASE}", fingerprint="f1", since=0)
print(run, flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(address: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has begun run 1 and claimed BERT."""
    command = [sys.executable, "-c", OTHER, address]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=ROOT, env={"PYTHONPATH": SEARCH_PATH}, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        yield process
        process.kill()


def claim(store: Store, signature: str, *, release: str = RELEASE, fingerprint: str = "f1", since: int = 0) -> bool:
    return store.claim(signature, release=release, fingerprint=fingerprint, since=since)


def test_what_another_process_has_in_work_is_left_to_it_until_it_dies(store: Store, address: str) -> None:
    with another_process(address) as other:
        assert not claim(store, BERT)
        assert claim(store, BERT, release="2026.09")
        assert claim(store, QWEN)
        mine = begin(store)
        assert [(run.id, run.state) for run in store.runs()] == [(mine, "running"), (1, "running")]
        other.kill()
        other.wait()
    # A server notices the end of a session a moment later.
    while not claim(store, BERT):
        pass
    again = begin(store)
    assert [(run.id, run.state) for run in store.runs()] == [
        (again, "running"),
        (mine, "interrupted"),
        (1, "interrupted"),
    ]


def test_what_was_judged_since_the_plan_is_not_judged_again(store: Store) -> None:
    since = store.newest_verdict()
    assert since == 0
    first = store.record_verdict(begin(store), record(signature=BERT))
    assert not claim(store, BERT)
    assert claim(store, BERT, fingerprint="f2")
    store.unclaim(BERT, release=RELEASE)
    assert claim(store, BERT, since=first), "asked for again (--retry), although it has a verdict"
    assert store.newest_verdict() == first


def test_claims_can_be_given_up(store: Store, address: str) -> None:
    assert claim(store, BERT)
    assert claim(store, BERT), "one's own"
    store.unclaim(BERT, release=RELEASE)
    store.unclaim(BERT, release=RELEASE)
    with another_process(address):
        assert not claim(store, BERT)


def test_the_file_of_claims_goes_with_the_last_process(tmp_path: Path) -> None:
    file = tmp_path / "s.db-claims"
    first = FileClaims(file)
    assert first.take("a")
    late = FileClaims(file)
    assert late.take("b")
    assert file.exists()
    first.close()
    assert not file.exists()
    # `late` holds a file that nobody else can find any more, and notices.
    assert late.take("c")
    assert file.exists()
    late.close()
    assert list(tmp_path.iterdir()) == []


def test_sqlite_stores_leave_no_file_behind(store: Store, address: str) -> None:
    begin(store)
    claim(store, BERT)
    store.close()
    if file := sqlite_file(address) if address.startswith("sqlite") else None:
        assert not Path(f"/{file}-claims").exists()


def test_a_session_that_broke_is_replaced(postgres_server: Server) -> None:
    address = postgres_server.new_schema()
    with Store(address) as store:
        claims = ServerClaims(store._database)
        assert claims.take("a")
        postgres_server.run("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory'")
        assert claims.take("b")
        claims.drop("a")
        claims.close()


def test_schemas_of_one_database_have_claims_of_their_own(postgres_server: Server) -> None:
    with Store(postgres_server.new_schema()) as first, Store(postgres_server.new_schema()) as second:
        for store in (first, second):
            store.upgrade()
            assert claim(store, BERT)
