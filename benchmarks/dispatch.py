"""`make bench-dispatch`: what the graph path costs, in simulated time, and what our own dispatch costs for real.

The published gains of Granite 3.3 8B (batch 1, sequence 1024) are set beside a step of the same structure under three
paths: copies and launches through graphs, direct copies, direct copies and launches (D3.5, D7.8).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from benchmarks import dispatch_cost
from benchmarks.granite_step import CONTEXT, Step, make_step, structure_only
from spyre_backend.emulator.clock_constants import STEP_COPIES
from spyre_backend.runtime.dispatch import DispatchPaths, use_paths

PUBLISHED = {"prefill": (9.9, 1.7), "decode": (13.6, 2.4)}
"""Gain of direct copies in percent, and of direct copies and launches as a factor."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """Simulated milliseconds of one step under the three paths."""

    step: str
    launches: int
    graph: float
    direct_copies: float
    direct: float

    @property
    def copies_gain(self) -> float:
        """Percent by which direct copies alone are faster."""
        return 100 * (self.graph / self.direct_copies - 1)

    @property
    def total_gain(self) -> float:
        """Factor by which direct copies and launches are faster."""
        return self.graph / self.direct

    @property
    def launches_share(self) -> float:
        """Part of the time saved that direct launches save."""
        return (self.direct_copies - self.direct) / (self.graph - self.direct)


def measure(step: Step, paths: DispatchPaths) -> float:
    """Simulated milliseconds of one step."""
    begin, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with use_paths(paths), structure_only(), torch.no_grad():
        begin.record()
        step.run(STEP_COPIES)
        end.record()
        end.synchronize()
    return float(begin.elapsed_time(end))


def rows() -> list[Row]:
    """Both steps under all paths."""
    made = []
    for name, length in (("prefill", CONTEXT), ("decode", 1)):
        with structure_only():
            step = make_step(length)
        before = torch.spyre.launch_count()
        graph = measure(step, DispatchPaths(copies="graph", launches="graph"))
        launches = torch.spyre.launch_count() - before
        copies = measure(step, DispatchPaths(copies="direct", launches="graph"))
        direct = measure(step, DispatchPaths())
        made.append(Row(step=name, launches=launches, graph=graph, direct_copies=copies, direct=direct))
    return made


def table(measured: list[Row]) -> str:
    """The measured rows beside the published figures."""
    lines = [
        f"Granite 3.3 8B, batch 1, sequence {CONTEXT}: one step in simulated ms",
        f"({STEP_COPIES} copies and two launches for a layer: inferred, chosen to fit the published gains)",
        f"{'':8} {'launches':>8} {'graph/graph':>12} {'direct copies':>14} {'direct':>8}   "
        f"{'copies':>8} {'published':>9}   {'total':>6} {'published':>9}   {'by launches':>11} {'published':>9}",
    ]
    for row in measured:
        percent, factor = PUBLISHED[row.step]
        lines.append(
            f"{row.step:8} {row.launches:8} {row.graph:12.1f} {row.direct_copies:14.1f} {row.direct:8.1f}   "
            f"{row.copies_gain:7.1f}% {percent:8.1f}%   {row.total_gain:5.2f}x {factor:8.1f}x   "
            f"{row.launches_share:11.0%} {'about 3/4':>9}"
        )
    return "\n".join(lines)


def main() -> None:
    """Print both tables."""
    print(table(rows()))
    print()
    print(dispatch_cost.table())


if __name__ == "__main__":
    main()
