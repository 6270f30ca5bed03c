"""kill -9 in every step, before and after its work: the case goes on where it was and ends as if nothing had been."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_adapters.agents.graph import STEPS
from hf_adapters.store import Store
from hf_adapters.store.agents import AgentStore
from tests.agents import doubles
from tests.cli.conftest import SEARCH_PATH


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_in_every_step(tmp_path: Path, when: str) -> None:
    repository, database = doubles.make_repository(tmp_path / "r"), tmp_path / "c.db"
    with Store(database) as store:
        store.upgrade()
    done = subprocess.run(
        [sys.executable, "-m", "tests.agents.killed", str(database), str(repository), when],
        env={**os.environ, "PYTHONPATH": SEARCH_PATH},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines()]
    # 9 is SIGKILL; the case is resumed once between review and land, and once at the end.
    killed = [(name, ended) for name, ended, _ in lines if name != "resumed"]
    assert killed == [(name, "9") for name in STEPS], done.stderr[-3000:]
    assert [(ended, state) for name, ended, state in lines if name == "resumed"] == [("0", "waiting"), ("0", "landed")]
    with Store(database) as store:
        agents = AgentStore(store)
        (case,) = agents.cases()
        found = [(a.number, a.outcome, a.stage) for a in agents.attempts(case.id)]
        assert found == [(1, "rejected", "screen"), (2, "accepted", "validate"), (3, "accepted", "review")]
        assert len(store.adapters()) == 2
    listed = subprocess.run(
        ["git", "-C", str(repository), "branch", "--list", "agents/*"], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split() == [f"agents/relu_square-{case.id}"]
