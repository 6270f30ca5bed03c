"""Tables and traces of simulated runs."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from torch.profiler import ProfilerActivity

from spyre_backend.emulator.clock import ClockSettings, program_time
from spyre_backend.emulator.cycles import program_cycles
from spyre_backend.emulator.profile import HOST_ROW, chrome_trace, profile
from spyre_backend.runtime.observed import launches
from tests.emulator.clock_programs import matmul, softmax


def test_rows_add_up() -> None:
    cases = [softmax(512, 1024, resident=True), matmul(512, 512, 512, (8, 4, 1)), softmax(512, 1024, resident=True)]
    result = profile([cases[0], cases[1], cases[0]])
    assert result.kernel_us == pytest.approx(sum(program_time(case).us for case in cases))
    assert sum(row.us for row in result.rows) == pytest.approx(result.kernel_us)
    assert sum(row.share for row in result.rows) == pytest.approx(1)
    assert {row.operation: row.count for row in result.rows} == {
        "max": 2, "sub": 2, "exp": 2, "sum": 2, "realdiv": 2, "batchmatmul": 1,
    }  # fmt: skip
    assert [row.us for row in result.rows] == sorted((row.us for row in result.rows), reverse=True)
    assert result.cycles_us == pytest.approx(sum(program_cycles(case).us for case in cases))
    assert result.launch_us == 3 * 25
    assert profile(cases, ClockSettings(dispatch="graph")).launch_us > 15_000


def test_trace_has_a_row_for_each_core() -> None:
    result = profile([softmax(512, 1024, resident=True), matmul(1, 25600, 4096, (1, 25, 1))])
    events = json.loads(json.dumps(chrome_trace(result)))["traceEvents"]
    named = {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert named == {"launches", *(f"core {core}" for core in range(32))}
    work = [e for e in events if e["ph"] == "X"]
    assert {e["tid"] for e in work if e["name"] == "exp"} == set(range(32))
    assert {e["tid"] for e in work if e["name"] == "batchmatmul"} == set(range(25))
    for row in (0, HOST_ROW):
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in work if e["tid"] == row)
        assert all(end <= start + 1e-6 for (_, end), (start, _) in itertools.pairwise(mine))
    whole = max(e["ts"] + e["dur"] for e in work)
    assert whole == pytest.approx(result.kernel_us + result.launch_us)


def test_nothing_launched() -> None:
    result = profile([])
    assert (result.kernel_us, result.utilisation, result.rows) == (0, 0, ())


def test_launches_are_collected_and_shown_by_torch_profiler() -> None:
    x = torch.randn(64, 64, dtype=torch.float16).to("spyre")
    double = torch.compile(lambda t: t + t, dynamic=False)
    double(x)
    with launches() as outer:
        double(x)
        with launches() as inner:
            double(x)
    double(x)
    assert (len(outer), len(inner)) == (2, 1)
    assert [op.name for op in inner[0].ops] == ["add"]
    with torch.profiler.profile(activities=[ProfilerActivity.CPU]) as measured:
        double(x)
    shown = [event.key for event in measured.key_averages() if event.key.startswith("spyre::")]
    assert shown == [f"spyre::{inner[0].name} [{program_time(inner[0]).us:.2f} us simulated]"]
