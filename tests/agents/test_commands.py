"""`hf-adapters agent` and `hf-adapters review` on a database with cases, and checkpoints on both kinds of database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hf_adapters.agents import drafters, review
from hf_adapters.agents.checkpoints import NoCheckpointer, open_checkpointer
from hf_adapters.agents.drafters import UnknownDrafter, make
from hf_adapters.agents.run import advance, start
from hf_adapters.cli import main
from hf_adapters.commands import agent
from hf_adapters.store import Store
from tests import postgres
from tests.agents import doubles, drafts
from tests.agents.doubles import Scripted


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "cases.db") as opened:
        opened.upgrade()
        yield opened


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main(list(arguments))
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.fixture
def waiting(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A case that waits, in a process whose commands use the scripted drafter and the list of subjects."""
    doubles.fake_emulator(monkeypatch)
    doubles.make_repository(tmp_path / "r")
    other = drafts.CUBE.replace("inner + inner", "2.0 * inner")

    def workshop(opened: Store, *_: Any, repo: Path | None = None, **__: Any) -> Any:
        return doubles.workshop(opened, Scripted([drafts.CUBE, other]), repository=repo)

    monkeypatch.setattr(agent, "_workshop", workshop)
    shop = workshop(store)
    case_id = start(shop, release=doubles.RELEASE)
    with open_checkpointer(store.where) as checkpointer:
        assert advance(shop, checkpointer, case_id).state == "waiting"
    return case_id


def test_a_review_from_list_to_branch(
    waiting: int, store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, case, repo = ["--db", store.where], str(waiting), ["--repo", str(tmp_path / "r")]
    code, out, _ = run(capsys, "review", "list", *db)
    assert (code, "pow-scalar-exponent" in out) == (0, True)
    code, out, _ = run(capsys, "review", "show", case, *db)
    assert "error in noise floors" in out or "simulated microseconds 10" in out
    assert "class CubeGelu" in out
    code, out, _ = run(capsys, "review", "show", case, "--json", *db)
    assert json.loads(out)["adapter"] == "gelu_cube"
    assert run(capsys, "review", "comment", case, "--text", "hm", "--reviewer", "ann", *db)[0] == 0
    code, out, err = run(capsys, "review", "reject", case, "--reason", "shorter", "--reviewer", "ann", *db, *repo)
    assert (code, "waiting" in out) == (0, True), err
    code, out, err = run(capsys, "review", "approve", case, "--reviewer", "ann", *db, *repo)
    assert (code, f"landed on agents/gelu_cube-{waiting}" in out) == (0, True), err
    code, out, _ = run(capsys, "agent", "show", case, *db)
    assert "attempt 1 (gelu_cube): rejected at review" in out
    assert "approve of attempt 2 by ann" in out
    code, out, _ = run(capsys, "agent", "show", case, "--json", *db)
    assert len(json.loads(out)["attempts"]) == 2
    code, out, err = run(capsys, "review", "approve", case, "--reviewer", "ann", *db)
    assert (code, "does not wait for a decision" in err) == (2, True)
    assert run(capsys, "agent", "resume", case, *db)[:1] == (0,)


def test_mistakes_are_one_line(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    db = ["--db", store.where]
    for arguments, said in (
        (["agent", "resume", "99", *db], "no case 99"),
        (["review", "approve", "99", *db], "no case 99"),
        (["agent", "show", "--db", "/nowhere/x.db"], "no database"),
    ):
        code, _, err = run(capsys, *arguments)
        assert (code, said in err, err.count("\n")) == (2, True, 1), err


def test_the_graph_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "agent", "graph")
    assert (code, "validate" in out) == (0, True)


def test_drafters_go_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnknownDrafter, match="rewrite, openai"):
        make("magic")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert make("openai", model="m").name == "m"
    assert set(drafters.DRAFTERS) == {"rewrite", "openai"}


def test_checkpoints_on_postgresql(postgres_server: postgres.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    doubles.fake_emulator(monkeypatch)
    address = postgres_server.new_schema()
    with Store(address) as store:
        store.upgrade()
        shop = doubles.workshop(store, Scripted([drafts.CUBE]))
        case_id = start(shop, release=doubles.RELEASE)
        for _ in range(2):
            with open_checkpointer(address) as checkpointer:
                assert advance(shop, checkpointer, case_id).state == "waiting"
        review.reject(shop.agents, case_id, reviewer="ann", text="no")
        with open_checkpointer(address) as checkpointer:
            assert advance(shop, checkpointer, case_id).state == "given-up"


def test_other_databases_are_refused() -> None:
    with pytest.raises(NoCheckpointer, match="mysql"), open_checkpointer("mysql://x/y"):
        pass
