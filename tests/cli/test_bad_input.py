"""A user's mistake gets one clear line and exit code 2, and nothing is lost."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Done, Run, error_line


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("sweep", "--top", "0"), "'--top': Input should be greater than or equal to 1"),
        (("sweep", "--top", "abc"), "'--top': Input should be a valid integer"),
        (("sweep", "--limit", "0"), "'--limit'"),
        (("sweep", "--timeout", "0"), "'--timeout'"),
        (("sweep", "--memory", "lots"), "--memory: 'lots' is no size of memory: write for example 8G"),
        (("sweep", "--retry", "sometimes"), "--retry: sometimes is no verdict: choose among failed, native"),
        (("sweep", "--only", "bertie"), "no structure of the ranking is of family bertie: choose among"),
        (("sweep", "--source", "mine"), "holds no ranking 'mine'"),
        (
            ("sweep", "--backend-release", "1999.01"),
            "unknown torch-spyre release '1999.01'; available: 2026.07, 2026.09",
        ),
        (("report", "--backend-release", "1999.01"), "unknown torch-spyre release"),
        (("check", "bert.tiny/v30522", "--backend-release", "1999.01"), "unknown torch-spyre release"),
        (("check", "bert.tiny/v30522", "--dtype", "float8"), "--dtype float8: the device multiplies float16 and"),
        (("sweep", "--dtype", "float32"), "--dtype float32: the device multiplies float16 and bfloat16; give one of"),
        (("report", "--format", "pdf"), "'--format'"),
        (("report",), "there is no database at hf-adapters.db: run hf-adapters sweep"),
        (("show", "bert.tiny/v30522"), "there is no database at hf-adapters.db"),
        (("explain", "bert.tiny/v30522", "--stage", "nope"), "there is no stage 'nope': choose one of decompositions"),
        (("adapters", "show", "nope"), "there is no adapter 'nope': choose one of"),
        (("corpus", "import", "absent.csv"), "absent.csv"),
        (("sweeep",), "No such command 'sweeep'"),
        (("sweep", "--frobnicate"), "No such option"),
        (("db", "upgrade", "--db", "no/such/folder/s.db"), "the folder no/such/folder of the database"),
    ],
)
def test_mistakes_are_told_in_one_line(hf_adapters: Run, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in error_line(hf_adapters(*arguments))


def test_unknown_model_ids(hf_adapters: Run) -> None:
    line = error_line(hf_adapters("check", "no-owner/no-such-model", HF_ENDPOINT="http://127.0.0.1:9"))
    assert "'no-owner/no-such-model'" in line
    assert "HF_ENDPOINT" in line
    assert "'./absent' is no folder" in error_line(hf_adapters("check", "./absent"))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ('{"model_type": "be', "is not valid JSON"),
        ("not json at all", "is not valid JSON"),
        ('["bert"]', "not an object"),
        ('{"hidden_size": 64}', "names no model_type"),
        ('{"model_type": "bertissimo"}', "does not know the model type 'bertissimo'"),
    ],
)
def test_unusable_configs(hf_adapters: Run, tmp_path: Path, content: str, expected: str) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(content)
    line = error_line(hf_adapters("check", str(folder)))
    assert expected in line


def test_a_file_that_is_no_database_is_left_alone(hf_adapters: Run, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("my only copy")
    for command in (("sweep",), ("report",), ("show", "x"), ("db", "upgrade"), ("corpus", "import", str(file))):
        line = error_line(hf_adapters(*command, "--db", str(file)))
        assert "is not an SQLite database" in line or "columns" in line or "column" in line
    assert file.read_text() == "my only copy"


def test_a_database_of_another_program_is_left_alone(hf_adapters: Run, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("create table recipes (name text)")
    assert "belongs to another program" in error_line(hf_adapters("sweep", "--top", "5", "--db", "other.db"))


def test_a_read_only_database(hf_adapters: Run, tmp_path: Path) -> None:
    assert hf_adapters("db", "upgrade", "--db", "s.db").returncode == 0
    os.chmod(tmp_path / "s.db", 0o444)
    line = error_line(hf_adapters("sweep", "--top", "5", "--db", "s.db"))
    assert "s.db is write-protected" in line
    assert "chmod u+w" in line


def test_no_network_on_corpus_pull(tmp_path: Path) -> None:
    """In a process of its own: huggingface_hub reads HF_ENDPOINT once, when it is imported."""
    code = "import sys; from hf_adapters.cli import main; sys.exit(main(sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", code, "corpus", "pull", "--top", "5"],
        cwd=tmp_path,
        env={**os.environ, "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0"},
        capture_output=True,
        text=True,
    )
    line = error_line(Done(ended.returncode, ended.stdout, ended.stderr))
    assert "the Hub at http://127.0.0.1:9 cannot be reached" in line


def test_an_unwritable_report(hf_adapters: Run, tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("rank,model_id,downloads\n1,someone/model,5\n")
    assert hf_adapters("corpus", "import", "table.csv", "--db", "s.db").returncode == 0
    line = error_line(hf_adapters("report", "--db", "s.db", "--output", "no/such/folder/r.html"))
    assert "no/such/folder/r.html" in line


def test_a_full_disk_is_named(hf_adapters: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere/cache")

    monkeypatch.setattr("hf_adapters.sweep.run.sweep", full)
    line = error_line(hf_adapters("sweep", "--top", "5", "--db", "s.db"))
    assert "no space left on the device at /somewhere/cache" in line
    assert "TORCHINDUCTOR_CACHE_DIR" in line


def test_debugging_shows_the_traceback(hf_adapters: Run) -> None:
    done = hf_adapters("report", HF_ADAPTERS_DEBUG="1")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


def test_a_defect_of_ours_is_not_blamed_on_the_user(hf_adapters: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("oops")

    monkeypatch.setattr("hf_adapters.sweep.run.sweep", broken)
    line = error_line(hf_adapters("sweep", "--top", "5", "--db", "s.db"), code=3)
    assert "a defect of hf-adapters" in line


@pytest.mark.parametrize(
    "command", [("check", "bert.tiny/v30522"), ("explain", "bert.tiny/v30522"), ("sweep", "--top", "5")]
)
@pytest.mark.parametrize("variable", ["TORCHINDUCTOR_CACHE_DIR", "SPYRE_CACHE_DIR"])
def test_a_compile_cache_that_cannot_be_written(hf_adapters: Run, command: tuple[str, ...], variable: str) -> None:
    line = error_line(hf_adapters(*command, **{variable: "/proc/no-such-folder"}))
    assert "the compile cache /proc/no-such-folder" in line
    assert f"name another folder with {variable}" in line
