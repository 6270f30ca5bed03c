"""What a run cost on the simulated card: rows of a table, and a trace for Chrome's viewer or Perfetto."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spyre_backend.emulator import clock_constants as k
from spyre_backend.emulator.clock import Bound, ClockSettings, ProgramTime, launch_time, program_time
from spyre_backend.emulator.cycles import program_cycles
from spyre_backend.program import Program

HOST_ROW = k.CORES
"""Row of the trace for launches, after those of the cores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """All operations of one name, iteration space, core count and bound: how often, and their time in all.

    ``us`` is the clock's, ``cycles_us`` that of the independent cycle model; ``share`` is of all operations.
    """

    operation: str
    shape: tuple[int, ...]
    cores: int
    count: int
    bound: Bound
    us: float
    share: float
    cycles_us: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The launches of a run, in order, with their times in microseconds.

    ``kernel_us`` is the time on the cores, ``launch_us`` what the launches add; ``cycles_us`` is the kernels' time in
    the independent cycle model.
    """

    launches: tuple[ProgramTime, ...]
    rows: tuple[Row, ...]
    kernel_us: float
    launch_us: float
    cycles_us: float

    @property
    def utilisation(self) -> float:
        """Share of the matrix units' peak that the matmuls reach over the kernels' time."""
        macs = sum(op.macs for time in self.launches for op in time.ops)
        return macs / (self.kernel_us * 1000 * k.PEAK_MACS * k.CORES) if self.kernel_us else 0.0


def profile(programs: Sequence[Program], settings: ClockSettings | None = None) -> Profile:
    """The profile of these launches.

    Args:
        programs: launched programs in order, such as :func:`spyre_backend.runtime.observed.launches` collects.
        settings: of the clock; those in force by default.
    """
    known: dict[int, tuple[ProgramTime, tuple[float, ...], float]] = {}
    found: dict[tuple[str, tuple[int, ...], int, Bound], tuple[int, float, float]] = {}
    times, cycles_us = [], 0.0
    for program in programs:
        if id(program) not in known:
            counted = program_cycles(program)
            known[id(program)] = program_time(program, settings), tuple(op.us for op in counted.ops), counted.us
        time, others, whole = known[id(program)]
        times.append(time)
        cycles_us += whole
        for op, other in zip(time.ops, others, strict=True):
            key = (op.name, op.dims, op.cores, op.bound)
            count, us, cycles = found.get(key, (0, 0.0, 0.0))
            found[key] = (count + 1, us + op.us, cycles + other)
    kernel_us = sum(time.us for time in times)
    rows = [
        Row(
            operation=name,
            shape=shape,
            cores=cores,
            count=count,
            bound=bound,
            us=us,
            share=us / kernel_us if kernel_us else 0.0,
            cycles_us=cycles,
        )
        for (name, shape, cores, bound), (count, us, cycles) in found.items()
    ]
    launch_us = len(times) * launch_time(settings.dispatch if settings else None)
    return Profile(
        launches=tuple(times),
        rows=tuple(sorted(rows, key=lambda row: -row.us)),
        kernel_us=kernel_us,
        launch_us=launch_us,
        cycles_us=cycles_us,
    )


def chrome_trace(result: Profile) -> dict[str, Any]:
    """The run as Chrome trace events (open in chrome://tracing or ui.perfetto.dev): one row for each core.

    Every operation appears on the cores that take part in it, one launch after the other, each behind its launch time
    on a row of its own; times are simulated microseconds.
    """
    return {"displayTimeUnit": "ns", "traceEvents": [*_names(), *_events(result)]}


def _names() -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "spyre:0 (simulated)"}}
    for row in range(k.CORES + 1):
        name = "launches" if row == HOST_ROW else f"core {row}"
        yield {"ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": {"name": name}}
        yield {"ph": "M", "pid": 0, "tid": row, "name": "thread_sort_index", "args": {"sort_index": row}}


def _events(result: Profile) -> Iterator[dict[str, Any]]:
    now = 0.0
    launch_us = result.launch_us / len(result.launches) if result.launches else 0.0
    for time in result.launches:
        yield {"ph": "X", "pid": 0, "tid": HOST_ROW, "ts": now, "dur": launch_us, "name": time.name, "cat": "launch"}
        now += launch_us
        for op in time.ops:
            details = {
                "shape": list(op.dims),
                "bound by": op.bound,
                "bytes read": op.read_bytes,
                "bytes written": op.written_bytes,
                "program": time.name,
            }
            for core in range(op.cores):
                yield {
                    "ph": "X",
                    "pid": 0,
                    "tid": core,
                    "ts": now,
                    "dur": op.us,
                    "name": op.name,
                    "cat": op.kind,
                    "args": details,
                }
            now += op.us
