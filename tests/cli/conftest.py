"""Runs the command line inside this process; the few tests that kill it start a process of their own."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hf_adapters.cli import main
from tests.cli.pinned import PINNED

ROOT = Path(__file__).parents[2]
FAKE_JUDGE = "tests.sweep.fakes:judge"
#: Makes the fakes of the tests importable in workers.
SEARCH_PATH = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))


@dataclass(frozen=True, slots=True)
class Done:
    """What a command left behind."""

    returncode: int
    stdout: str
    stderr: str


Run = Callable[..., Done]


@pytest.fixture
def hf_adapters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `hf-adapters ARGUMENTS` in an empty folder; keyword arguments are environment variables."""

    def run(*arguments: str, **variables: str) -> Done:
        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(tmp_path)
            patch.delenv("HF_ADAPTERS_DB", raising=False)
            for name, value in {"PYTHONPATH": SEARCH_PATH, "HF_HUB_OFFLINE": "1", **variables}.items():
                patch.setenv(name, value)
            patch.setattr("hf_adapters.sweep.fingerprint.code_hash", lambda: PINNED)
            patch.setattr("hf_adapters.sweep.fingerprint.adapters_hash", lambda: PINNED)
            code = main(arguments)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run


def error_line(done: Done, code: int = 2) -> str:
    """The one line that a failed command prints; asserts that there is no traceback."""
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: ")
    return lines[0]
