"""Several sweeps on one database at once: they share the work, and nothing is judged twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_adapters.store import Store
from tests.cli.conftest import FAKE_JUDGE, SEARCH_PATH
from tests.cli.test_sweep import judged


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_sweeps_share_the_work(tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "postgresql":
        server = request.getfixturevalue("postgres_server")
        address = server.address(server.new_database())
    else:
        address = str(tmp_path / "s.db")
    log = tmp_path / "log"
    environment = {
        **os.environ,
        "PYTHONPATH": SEARCH_PATH,
        "HF_ADAPTERS_FAKE_LOG": str(log),
        "HF_ADAPTERS_FAKE_SECONDS": "0.3",
    }
    command = [sys.executable, "-m", "tests.cli.pinned", "sweep", "--db", address, "--top", "100", "--jobs", "1"]
    command += ["--work", FAKE_JUDGE, "--html"]
    processes = [
        subprocess.Popen(
            [*command, f"{number}.html"],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert len(judged(log)) == len(set(judged(log))) > 20
    with Store(address) as store:
        runs = store.runs()
        assert [run.state for run in runs] == ["finished", "finished"]
        current = store.current(release=runs[0].release, source="bundled", top=100)
        assert all(item.verdict for item in current)
        made_by = {item.evidence.run_id for item in current if item.evidence and item.signature}
    assert made_by == {run.id for run in runs}, outputs
    assert "left to other sweeps on this database" in "".join(outputs)
