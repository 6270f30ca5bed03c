"""Simulated costs: hands the clock's figures (D3.6, D7) to the streams' timelines (``csrc/timeline.cpp``)."""

from __future__ import annotations

from spyre_backend import _C
from spyre_backend.emulator import clock, clock_constants
from spyre_backend.program import Program

__all__ = ["apply", "program_microseconds"]

_MEGABYTE = 1 << 20


def program_microseconds(program: Program) -> float:
    """Simulated time of one run of `program` without its launch, in microseconds (D7.1)."""
    return clock.program_time(program).us


def apply(*, copies: clock.Dispatch, launches: clock.Dispatch) -> None:
    """Makes timelines charge copies and launches as these dispatch paths cost (D3.6, D7.8).

    A copy on the device is a launch that reads and writes the bytes once (D7.3).
    """
    launch = clock.launch_time(launches)
    fixed = clock.copy_time(0, dispatch=copies)
    per_byte = (clock.copy_time(_MEGABYTE, dispatch=copies) - fixed) / _MEGABYTE
    nanoseconds = 2 / clock_constants.HBM_BANDWIDTH + clock_constants.TURNAROUND
    _C.set_clock_costs(
        launch=launch,
        copy=fixed,
        per_byte_link=per_byte,
        device_copy=launch,
        per_byte_device=nanoseconds / 1000,
    )
