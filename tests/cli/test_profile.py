"""`hf-adapters profile`: table, trace, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run, error_line

MODEL = "bert.tiny/v30522"


@pytest.mark.slow
def test_table_and_trace(hf_adapters: Run, tmp_path: Path) -> None:
    done = hf_adapters("profile", MODEL, "--length", "64", "--batch", "2", "--trace", "t.json")
    assert done.returncode == 0, done.stderr
    header, *lines = done.stdout.splitlines()
    assert "".join(header.split()) == "operationshapecorescountboundbyussharecyclemodelus"
    matmuls = [line for line in lines if line.startswith("batchmatmul")]
    assert matmuls
    shares = [float(line.split("%")[0].split()[-1]) for line in lines if "%" in line and " launches" not in line]
    assert sum(shares) == pytest.approx(100, abs=2)
    summary = next(line for line in lines if " launches: " in line)
    assert float(summary.split("launching, ")[1].split(" us")[0].replace(",", "")) > 0
    trace = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["tid"] for e in trace if "tid" in e} == set(range(33))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((MODEL, "--backend-release", "1999.01"), "unknown torch-spyre release '1999.01'"),
        (("./absent",), "'./absent' is no folder"),
        ((MODEL, "--length", "0"), "'--length'"),
        ((MODEL, "--batch", "many"), "'--batch'"),
        ((MODEL, "--trace", "."), "--trace . is a folder: name a file"),
        ((MODEL, "--trace", "no/such/t.json"), "--trace: the folder no/such does not exist"),
        ((), "Missing argument 'MODEL'"),
    ],
)
def test_mistakes_are_told_in_one_line(hf_adapters: Run, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in error_line(hf_adapters("profile", *arguments))


def test_a_mistake_in_the_clock_s_environment(hf_adapters: Run) -> None:
    done = hf_adapters("profile", MODEL, SPYRE_CLOCK_DISPATCH="fast")
    assert "SPYRE_CLOCK_DISPATCH is 'fast': choose direct or graph" in error_line(done)
