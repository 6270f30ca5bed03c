"""`hf-adapters profile`: table, trace, and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hf_adapters.commands.profile import _print
from spyre_backend.emulator.profile import profile as measure
from tests.cli.conftest import Run, error_line
from tests.emulator.clock_programs import matmul

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


def test_rows_beyond_the_table_are_summed_up_and_host_operators_named(capsys: pytest.CaptureFixture[str]) -> None:
    programs = [matmul(64 * n, 64, 64, (1, 1, 1)) for n in range(1, 34)]
    result = measure([*programs, programs[0]])
    _print(result, {("aten.sin.default", "compute"): 2, ("aten.cumsum.default", "integer"): 1})
    lines = capsys.readouterr().out.splitlines()
    rows = [line.split() for line in lines if line.startswith("batchmatmul")]
    assert [float(row[-3]) for row in rows] == [float(f"{r.us:.2f}") for r in result.rows[:30]]
    (others,) = (line.split() for line in lines if "others" in line)
    rest = result.rows[30:]
    assert others == [
        "3", "others", str(sum(r.count for r in rest)), f"{sum(r.us for r in rest):.2f}",
        f"{sum(r.share for r in rest):.1%}", f"{sum(r.cycles_us for r in rest):.2f}",
    ]  # fmt: skip
    assert lines[-1] == "on the CPU, not timed: aten.cumsum.default x1, aten.sin.default x2"


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
