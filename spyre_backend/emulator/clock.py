"""The clock: simulated time of programs, copies and launches (D7), in microseconds.

A bundle takes max(compute, memory) over its totals plus its relayouts (D7.1): the hardware overlaps the two within a
bundle.  :func:`program_time` also shares that time among the operations, so that their sum is the bundle's time.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Literal

from spyre_backend.emulator import clock_constants as k
from spyre_backend.emulator.clock_ops import Cost, Scaling, cost
from spyre_backend.emulator.clock_traffic import Traffic, count
from spyre_backend.program import Program

Dispatch = Literal["direct", "graph"]
Bound = Literal["compute", "memory", "relayout"]


class ClockSettingError(ValueError):
    """A variable of the environment that sets the clock has no usable value."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockSettings:
    """Where the sources leave a choice.

    Attributes:
        dispatch: "direct" (launches and copies without graph, #1007 and #1823) or "graph" (one built for each, D3.6).
        pointwise_scaling: how fewer than 32 cores bound a plain pointwise operation. "cap": 40 GB/s for each core,
            which reproduces the 80.0 and 41.1 us of #4024 on 8 cores; "table": D7.4's g on everything, as D7.10
            suggests.
        noise_seed: None for no noise; otherwise times of operations are multiplied by a lognormal factor of the error
            that D7.1 reports for their kind. The same seed and program give the same times.
    """

    dispatch: Dispatch = "direct"
    pointwise_scaling: Scaling = "cap"
    noise_seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class OpTime:
    """The time of one operation of a bundle.

    ``us`` is its share of the bundle's time; ``compute_us``, ``memory_us`` and ``relayout_us`` what it needs of each.
    """

    index: int
    name: str
    kind: str
    dims: tuple[int, ...]
    cores: int
    bound: Bound
    us: float
    compute_us: float
    memory_us: float
    relayout_us: float
    read_bytes: int
    written_bytes: int
    macs: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramTime:
    """The time of one bundle, without its launch.

    ``touched_bytes`` counts every access to device memory anew, where ``read_bytes`` and ``written_bytes`` follow the
    counting rules of D7.1.
    """

    name: str
    us: float
    bound: Bound
    compute_us: float
    memory_us: float
    relayout_us: float
    read_bytes: int
    written_bytes: int
    touched_bytes: int
    ops: tuple[OpTime, ...]

    @property
    def utilisation(self) -> float:
        """Share of the peak of all 32 cores' matrix units (D1.3) that the bundle's matmuls reach; 0 without any."""
        macs = sum(op.macs for op in self.ops)
        return macs / (self.us * 1000 * k.PEAK_MACS * k.CORES) if self.us else 0.0


def environment_settings() -> ClockSettings:
    """Settings of the process: ``SPYRE_CLOCK_DISPATCH`` (direct, graph) and ``SPYRE_CLOCK_NOISE`` (a seed).

    Raises:
        ClockSettingError: a variable has another value.
    """
    dispatch = os.environ.get("SPYRE_CLOCK_DISPATCH", "direct")
    noise = os.environ.get("SPYRE_CLOCK_NOISE")
    if dispatch not in ("direct", "graph"):
        raise ClockSettingError(f"SPYRE_CLOCK_DISPATCH is {dispatch!r}: choose direct or graph")
    if noise and not noise.isdigit():
        raise ClockSettingError(
            f"SPYRE_CLOCK_NOISE is {noise!r}: give a seed (a whole number), or nothing for no noise"
        )
    return ClockSettings(
        dispatch="graph" if dispatch == "graph" else "direct", noise_seed=int(noise) if noise else None
    )


_settings: ContextVar[ClockSettings | None] = ContextVar("spyre_clock", default=None)


def settings() -> ClockSettings:
    """The settings in force: those of :func:`use`, else of the environment."""
    return _settings.get() or environment_settings()


@contextmanager
def use(chosen: ClockSettings) -> Iterator[None]:
    """Run a block of code (of this thread or task) with other settings."""
    token = _settings.set(chosen)
    try:
        yield
    finally:
        _settings.reset(token)


def program_time(program: Program, chosen: ClockSettings | None = None) -> ProgramTime:
    """Simulated time of one run of `program` on the cores.

    Args:
        program: a bundle with its layouts, divisions and scratchpad addresses.
        chosen: settings; those in force by default.
    """
    active = chosen or settings()
    traffic = count(program)
    costs = [cost(program, i, t, active.pointwise_scaling) for i, t in enumerate(traffic)]
    memory = [c.memory_ns + extra for c, extra in zip(costs, _turnaround(costs, traffic), strict=True)]
    compute_ns, memory_ns = sum(c.compute_ns for c in costs), sum(memory)
    relayout_ns = sum(c.relayout_ns for c in costs)
    overlapped = compute_ns + memory_ns - k.OVERLAP * min(compute_ns, memory_ns)
    weights = [max(c.compute_ns, m) for c, m in zip(costs, memory, strict=True)]
    whole = sum(weights)
    ops = tuple(
        OpTime(
            index=i,
            name=program.ops[i].name,
            kind=c.kind,
            dims=program.ops[i].dims,
            cores=c.cores,
            bound="relayout" if c.relayout_ns else "compute" if c.compute_ns > m else "memory",
            us=(c.relayout_ns + (overlapped * w / whole if whole else 0.0)) / 1000,
            compute_us=c.compute_ns / 1000,
            memory_us=m / 1000,
            relayout_us=c.relayout_ns / 1000,
            read_bytes=t.read,
            written_bytes=t.written,
            macs=c.macs,
        )
        for i, (c, m, w, t) in enumerate(zip(costs, memory, weights, traffic, strict=True))
    )
    if active.noise_seed is not None:
        ops = _noisy(program, ops, active.noise_seed)
    bound: Bound = "compute" if compute_ns > memory_ns else "memory"
    return ProgramTime(
        name=program.name,
        us=sum(op.us for op in ops),
        bound="relayout" if relayout_ns > max(compute_ns, memory_ns) else bound,
        compute_us=compute_ns / 1000,
        memory_us=memory_ns / 1000,
        relayout_us=relayout_ns / 1000,
        read_bytes=sum(t.read for t in traffic),
        written_bytes=sum(t.written for t in traffic),
        touched_bytes=sum(t.touched for t in traffic),
        ops=ops,
    )


def _turnaround(costs: list[Cost], traffic: list[Traffic]) -> list[float]:
    """Each operation's part of the bundle's read/write turn-around (D7.1), in ns, by its bytes."""
    plain = [t if c.turnaround else Traffic() for c, t in zip(costs, traffic, strict=True)]
    total = sum(t.charged for t in plain)
    if not total:
        return [0.0] * len(costs)
    wait = k.TURNAROUND * min(sum(t.read for t in plain), sum(t.written for t in plain))
    return [wait * t.charged / total / c.scale for c, t in zip(costs, plain, strict=True)]


def _noisy(program: Program, ops: tuple[OpTime, ...], seed: int) -> tuple[OpTime, ...]:
    """Times of operations as far from the model as the card was: lognormal, by kind (D7.10)."""
    dice = random.Random(f"{seed} {program.digest}")
    names = {op.name for op in program.ops}
    softmax = {"exp", "sum", "max"} <= names
    noisy = []
    for op in ops:
        kind = "softmax" if softmax and op.kind not in ("matmul", "bmm", "transport") else op.kind
        sigma = k.MODEL_ERROR.get(kind, k.MODEL_ERROR["transport"])
        noisy.append(replace(op, us=op.us * dice.lognormvariate(0.0, sigma)))
    return tuple(noisy)


def launch_time(dispatch: Dispatch | None = None) -> float:
    """Microseconds from the launch call to the first operation: 25 directly, 5.1 ms through a graph (D3.6)."""
    return k.LAUNCH_GRAPH if (dispatch or settings().dispatch) == "graph" else k.LAUNCH_DIRECT


def copy_time(num_bytes: int, *, converted: bool = True, dispatch: Dispatch | None = None) -> float:
    """Microseconds of a copy between host and device (D3.6, D7.10).

    Args:
        num_bytes: bytes on the device, whole sticks.
        converted: whether the host changes layout or format (it does, but for raw bytes).
        dispatch: "direct" or "graph"; the setting in force by default.
    """
    fixed = k.COPY_GRAPH if (dispatch or settings().dispatch) == "graph" else k.COPY_DIRECT
    rate = 1 / k.PCIE + (1 / k.HOST_STICKIFY if converted else 0.0)
    return fixed + num_bytes * rate / 1000
