"""The sweep command, with a judge that answers at once: what is planned, recorded, resumed and reported."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import FAKE_JUDGE, SEARCH_PATH, Done, Run


def judged(log: Path) -> list[str]:
    """Structures that the fake judge was asked about, in order."""
    return log.read_text().split() if log.exists() else []


def report(hf_adapters: Run, *arguments: str) -> dict[str, Any]:
    done = hf_adapters("report", "--format", "json", "--db", "s.db", *arguments)
    assert done.returncode == 0, done.stderr
    parsed: dict[str, Any] = json.loads(done.stdout)
    return parsed


def sweep(hf_adapters: Run, *arguments: str, **variables: str) -> Done:
    done = hf_adapters("sweep", "--db", "s.db", "--jobs", "2", "--work", FAKE_JUDGE, *arguments, **variables)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_sweep_gives_every_model_one_verdict_and_a_report(hf_adapters: Run, tmp_path: Path) -> None:
    done = sweep(hf_adapters, "--top", "300")
    assert done.returncode == 0, done.stderr
    assert "the bundled snapshot of 2026-07-15" in done.stdout
    assert "of 300 models accepted" in done.stdout
    assert (tmp_path / "s.html").exists()
    assert str(tmp_path / "s.html") in done.stdout
    figures = report(hf_adapters)
    assert figures["coverage"]["10000"]["models"] == 300
    assert figures["coverage"]["10000"]["judged"] == 300
    assert sum(figures["verdicts"].values()) == 300
    assert figures["verdicts"]["pending"] == 0
    assert figures["blocking"]["aten.pow.Tensor_Scalar"]["models"] > 0
    assert figures["verdicts"]["unbuildable"] > 0


def test_several_releases_are_judged_and_compared(hf_adapters: Run, tmp_path: Path) -> None:
    done = sweep(hf_adapters, "--top", "20", "--backend-release", "2026.07,2026.09")
    assert done.returncode == 0, done.stderr
    assert "Adapters by release" in done.stdout
    assert (tmp_path / "s.html").exists()
    assert (tmp_path / "s-2026.09.html").exists()
    unknown = hf_adapters("sweep", "--db", "s.db", "--backend-release", "2026.07,1999.01")
    assert unknown.returncode == 2
    assert "1999.01" in unknown.stderr


def test_each_structure_is_judged_once_and_those_with_most_impact_first(hf_adapters: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sweep(hf_adapters, "--top", "300", "--jobs", "1", HF_ADAPTERS_FAKE_LOG=str(log))
    first = judged(log)
    assert len(first) == len(set(first)) > 20
    figures = report(hf_adapters)
    assert figures["adapters"]["gelu"]["structures"] > 3
    with sqlite3.connect(tmp_path / "s.db") as database:
        family, checkpoint = database.execute(
            "select model_type, representative_checkpoint from structures where signature = ?", (first[0],)
        ).fetchone()
        adapters = database.execute("select name, hash, summary, rules from adapters").fetchall()
    assert adapters == [("gelu", "h1", "a gelu", '["r"]')]
    assert (family, checkpoint) == ("bert", "sentence-transformers/all-MiniLM-L6-v2")


def test_a_second_sweep_judges_nothing(hf_adapters: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sweep(hf_adapters, "--top", "50", HF_ADAPTERS_FAKE_LOG=str(log))
    before = judged(log)
    assert before
    again = sweep(hf_adapters, "--top", "50", HF_ADAPTERS_FAKE_LOG=str(log))
    assert again.returncode == 0
    assert judged(log) == before
    assert "0 to try" in again.stdout


def test_a_wider_sweep_judges_only_what_is_new(hf_adapters: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sweep(hf_adapters, "--top", "20", HF_ADAPTERS_FAKE_LOG=str(log))
    narrow = judged(log)
    sweep(hf_adapters, "--top", "100", HF_ADAPTERS_FAKE_LOG=str(log))
    wide = judged(log)
    assert wide[: len(narrow)] == narrow
    assert len(set(wide)) == len(wide) > len(narrow)


def test_limit_and_only_choose_structures(hf_adapters: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    done = sweep(hf_adapters, "--top", "300", "--only", "mpnet", "--limit", "1", HF_ADAPTERS_FAKE_LOG=str(log))
    assert done.returncode == 0
    assert len(judged(log)) == 1
    assert "left for later" in done.stdout
    figures = report(hf_adapters)
    assert figures["verdicts"]["uncovered"] > 0
    assert figures["verdicts"]["pending"] > 0


def test_retry_tries_again_what_failed(hf_adapters: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sweep(hf_adapters, "--top", "100", "--only", "mpnet,bert", HF_ADAPTERS_FAKE_LOG=str(log))
    before = judged(log)
    sweep(hf_adapters, "--top", "100", "--only", "mpnet,bert", "--retry", "failed", HF_ADAPTERS_FAKE_LOG=str(log))
    assert len(judged(log)) == len(before) + 1, "mpnet alone was not accepted"


def test_releases_have_verdicts_of_their_own(hf_adapters: Run, tmp_path: Path) -> None:
    log = tmp_path / "log"
    arguments = ("--top", "10", "--limit", "1")
    sweep(hf_adapters, *arguments, HF_ADAPTERS_FAKE_LOG=str(log))
    sweep(hf_adapters, *arguments, "--backend-release", "2026.09", HF_ADAPTERS_FAKE_LOG=str(log))
    assert len(judged(log)) == 2
    assert report(hf_adapters)["release"] == "2026.07"
    assert report(hf_adapters, "--backend-release", "2026.09")["verdicts"]["adapted"] > 0


def test_a_structure_that_kills_its_worker_is_recorded_and_the_rest_goes_on(hf_adapters: Run) -> None:
    done = sweep(hf_adapters, "--top", "100", "--only", "mpnet,bert", HF_ADAPTERS_FAKE_DIE="mpnet")
    assert done.returncode == 0
    figures = report(hf_adapters)
    assert figures["verdicts"]["crashed"] > 0
    assert figures["verdicts"]["adapted"] > 0
    (reason,) = [reason for reason in figures["reasons"] if reason["verdict"] == "crashed"]
    assert "SIGKILL" in reason["reason"]


def start(tmp_path: Path, log: Path, seconds: str) -> subprocess.Popen[str]:
    """A sweep in the background whose judge takes its time; returns once some verdicts are there."""
    environment = {
        **os.environ,
        "PYTHONPATH": SEARCH_PATH,
        "HF_ADAPTERS_FAKE_LOG": str(log),
        "HF_ADAPTERS_FAKE_SECONDS": seconds,
    }
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "tests.cli.pinned",
            "sweep",
            "--db",
            "s.db",
            "--top",
            "100",
            "--jobs",
            "1",
            "--work",
            FAKE_JUDGE,
        ],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while len(judged(log)) < 4:
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_sweep_keeps_its_verdicts_and_continues(
    hf_adapters: Run, tmp_path: Path, how: signal.Signals
) -> None:
    log = tmp_path / "log"
    process = start(tmp_path, log, "0.3")
    process.send_signal(how)
    out, err = process.communicate(timeout=60)
    if how is not signal.SIGKILL:
        assert process.returncode == 130
        assert "Continue with: hf-adapters sweep --db s.db" in out
        assert "Traceback" not in err
    before = judged(log)
    with sqlite3.connect(tmp_path / "s.db") as database:
        (recorded,) = database.execute("select count(*) from verdicts where signature is not null").fetchone()
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)
    assert len(before) - 2 <= recorded <= len(before)
    done = sweep(hf_adapters, "--top", "100", HF_ADAPTERS_FAKE_LOG=str(log))
    assert done.returncode == 0
    assert len(judged(log)) == len(set(judged(log))) + len(before) - recorded, "only what was lost is judged twice"
    assert report(hf_adapters)["verdicts"]["pending"] == 0


def test_a_killed_sweep_leaves_no_worker_behind(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = start(tmp_path, log, "0.3")
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    process.kill()
    process.communicate(timeout=30)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() and _state(pid) != "Z" for pid in children):
        assert time.monotonic() < deadline, "a worker outlived its supervisor"
        time.sleep(0.1)


def _state(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
