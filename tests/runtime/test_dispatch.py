"""Both dispatch paths: the same results, graphs only where a path has them, and what they cost (D3.5, D3.6)."""

from __future__ import annotations

import pytest
import torch

from benchmarks.dispatch import Row, table
from spyre_backend import _C
from spyre_backend.emulator import clock, clock_constants
from spyre_backend.runtime.dispatch import DispatchPaths, paths, use_paths
from spyre_backend.runtime.launch import LoadedProgram
from tests.runtime.test_launch import doubling

ALL = [DispatchPaths(copies=c, launches=k) for c in ("graph", "direct") for k in ("graph", "direct")]


@pytest.mark.parametrize("chosen", ALL, ids=str)
def test_paths_differ_in_graphs_and_in_nothing_else(chosen: DispatchPaths) -> None:
    run, host = LoadedProgram(doubling((64,))), torch.randn(64).half()
    with use_paths(chosen):
        assert paths() == chosen
        before = _C.loaded_graphs()
        x = host.to("spyre")
        y = torch.empty_like(x)
        run.launch(x, y)
        result = y.cpu()
        built = _C.loaded_graphs() - before
    assert built == 2 * (chosen.copies == "graph") + (chosen.launches == "graph")
    plain = torch.empty_like(x)
    run.launch(x, plain)
    assert torch.equal(plain.cpu(), result)


def simulated(chosen: DispatchPaths, copies: int, launches: int) -> float:
    """Simulated microseconds of so many copies of a stick to the device and launches."""
    run = LoadedProgram(doubling((64,)))
    x, host = torch.ones(64, dtype=torch.float16, device="spyre"), torch.ones(64, dtype=torch.float16)
    begin, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    torch.spyre.synchronize()
    with use_paths(chosen):
        begin.record()
        for _ in range(copies):
            x.copy_(host)
        for _ in range(launches):
            run.launch(x, x)
        end.record()
        torch.spyre.synchronize()
    return 1000 * float(begin.elapsed_time(end))


def test_a_graph_costs_what_the_clock_says() -> None:
    direct, graph = DispatchPaths(), DispatchPaths(copies="graph", launches="graph")
    launch = clock_constants.LAUNCH_GRAPH - clock_constants.LAUNCH_DIRECT
    copy = clock.copy_time(0, dispatch="graph") - clock.copy_time(0, dispatch="direct")
    assert copy == pytest.approx(clock_constants.COPY_GRAPH - clock_constants.COPY_DIRECT)
    assert simulated(graph, 0, 5) - simulated(direct, 0, 5) == pytest.approx(5 * launch)
    assert simulated(graph, 3, 0) - simulated(direct, 3, 0) == pytest.approx(3 * copy)
    assert simulated(graph, 3, 5) - simulated(direct, 3, 5) == pytest.approx(3 * copy + 5 * launch)


def test_the_table_counts_gains_as_published() -> None:
    row = Row(step="decode", launches=81, graph=240.0, direct_copies=200.0, direct=100.0)
    assert row.copies_gain == pytest.approx(20)
    assert row.total_gain == pytest.approx(2.4)
    assert row.launches_share == pytest.approx(100 / 140)
    text = table([row])
    for part in ("inferred, chosen to fit", "20.0%", "13.6%", "2.40x", "2.4x", "71%", "about 3/4"):
        assert part in text
