"""Every command that takes `--db` on a PostgreSQL server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import FAKE_JUDGE, Run, error_line
from tests.cli.test_commands import TABLE
from tests.postgres import Server

EVIDENCE = {"verdict": "adapted", "reason": "", "adapters": {"gelu": "h1"}, "weights": "random", "depth": "all layers"}


def test_the_whole_way(
    hf_adapters: Run, postgres_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = postgres_server.address(postgres_server.new_database())
    shown = "postgresql://tester:***@"
    db = ("--db", address.replace("tester@", "tester:secret@"))
    (tmp_path / "table.csv").write_text(TABLE)

    def run(*arguments: str) -> str:
        done = hf_adapters(*arguments, *db)
        assert done.returncode == 0, done.stderr
        assert "secret" not in done.stdout + done.stderr
        return done.stdout

    assert "schema upgraded from nothing" in run("db", "upgrade")
    assert "schema is up to date" in run("db", "upgrade")
    assert f"sweep --source table:table.csv --db {shown}" in run("corpus", "import", "table.csv")
    assert "ranking 'table:table.csv' with 4 models" in run("corpus", "info")
    run("sweep", "--jobs", "1", "--work", FAKE_JUDGE)
    assert (tmp_path / "hf-adapters.html").exists()
    assert "0 to try" in run("sweep", "--jobs", "1", "--work", FAKE_JUDGE)
    figures = json.loads(run("report", "--format", "json"))
    assert figures["verdicts"]["adapted"] == 2
    assert figures["blocking"]["aten.pow.Tensor_Scalar"]["downloads"] == 500
    assert "verdict:    uncovered" in run("show", "someone/mpnet")
    monkeypatch.setattr("hf_adapters.sweep.work.judge_found", lambda *_, **__: dict(EVIDENCE))
    assert f"recorded in {shown}" in run("check", "bert.tiny/v30522")
    assert "verdict:    adapted" in run("show", "bert.tiny/v30522")


def test_mistakes_are_told_in_one_line(hf_adapters: Run, postgres_server: Server) -> None:
    for arguments in (("db", "upgrade"), ("sweep", "--top", "5"), ("report",), ("show", "x"), ("corpus", "info")):
        line = error_line(hf_adapters(*arguments, "--db", postgres_server.address("nowhere")))
        assert 'database "nowhere" does not exist' in line
        assert "createdb" in line
    empty = postgres_server.address(postgres_server.new_database())
    assert "has no tables yet" in error_line(hf_adapters("report", "--db", empty))
    assert "is not the address of a database" in error_line(hf_adapters("report", "--db", "postgresql://h:port/x"))
