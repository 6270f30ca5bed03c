"""The independent cycle model (D7.7): what each core does, counted in cycles, without any figure measured on a card.

It shares no formula with :mod:`spyre_backend.emulator.clock`.  Each core moves whole sticks from device memory at its
share of the bandwidth, scratchpads are free, elementwise work runs at 64 elements a cycle, special functions at a
quarter of that, a matmul at a fixed number of operations a cycle.  The kernel takes as long as its slowest core.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from spyre_backend.emulator import clock_constants as k
from spyre_backend.emulator.clock_traffic import is_indexed
from spyre_backend.program import Op, Operand, Program, TensorSpec
from spyre_backend.slices import Ranges, core_slices

Overlap = Literal["serial", "overlapped", "overlapped_3way"]

SLOW = frozenset({"exp", "log", "sin", "cos", "tanh", "sqrt", "rsqrt"})
"""Functions at a quarter of the elementwise rate."""
COMPOSED = {
    "sigmoid": ("exp", "add", "reciprocal"),
    "silu": ("exp", "add", "reciprocal", "mul"),
    "softplus": ("exp", "add", "log"),
    "gelu": ("tanh", "mul", "mul", "mul", "add", "add", "mul", "mul"),
    "layernormscale": ("mul", "sub", "add", "rsqrt"),
    "layernormnorm": ("sub", "mul", "mul", "add"),
}
"""Device functions that the model does not list, as the elementwise operations that make them up (an inference)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CycleSettings:
    """Parameters of the model: its own defaults, or :data:`ALIGNED` with the clock's figures.

    ``clock_ghz`` GHz, ``hbm`` B/ns for the whole card, ``ring`` B/cycle, ``systolic`` FLOP/cycle/core; ``overlap`` is
    how a core's compute, memory and communication add up.
    """

    clock_ghz: float = k.CYCLE_CLOCK
    hbm: float = k.CYCLE_HBM
    ring: float = k.CYCLE_RING
    systolic: float = k.CYCLE_SYSTOLIC
    overlap: Overlap = "serial"


ALIGNED = CycleSettings(
    clock_ghz=k.CLOCK_GHZ,
    hbm=k.HBM_BANDWIDTH,
    systolic=k.ALIGNED_SYSTOLIC * k.ALIGNED_SUSTAINED,
    overlap="overlapped",
)
"""The alignment line of D7.7: clock, bandwidth and sustained matmul rate of the clock, memory hidden behind compute."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpCycles:
    """Cycles of the slowest core of one operation, by unit; ``us`` is its time alone."""

    name: str
    cores: int
    us: float
    compute: float
    memory: float
    communication: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramCycles:
    """What the model says of a program.

    ``us`` is the time of the slowest core; ``bound`` the unit with most cycles; ``coverage`` the share of the 32 cores
    that take part; ``intensity`` FLOP for each byte of device memory, ``attainment`` the achieved share of what the
    roofline allows at that intensity.
    """

    us: float
    cycles: float
    bound: str
    coverage: float
    intensity: float
    attainment: float
    ops: tuple[OpCycles, ...]


def program_cycles(program: Program, settings: CycleSettings = ALIGNED) -> ProgramCycles:
    """Cycles and time of one run of `program`.

    Args:
        program: a bundle.
        settings: aligned with the clock by default; ``CycleSettings()`` for the model's own.
    """
    specs = {spec.name: spec for spec in program.tensors}
    ops = tuple(_op_cycles(program, op, specs, settings) for op in program.ops)
    compute, memory, ring = (sum(getattr(op, unit) for op in ops) for unit in ("compute", "memory", "communication"))
    cycles = _together(compute, memory, ring, settings)
    flops = float(sum(_flops(op) for op in program.ops))
    num_bytes = sum(op.memory * _stick_rate(settings, op.cores) * op.cores for op in ops)
    intensity = flops / num_bytes if num_bytes else math.inf
    ns = cycles / settings.clock_ghz
    peak = min(settings.systolic * settings.clock_ghz * k.CORES, settings.hbm * intensity)
    units = {"compute": compute, "memory": memory, "communication": ring}
    return ProgramCycles(
        us=ns / 1000,
        cycles=cycles,
        bound=max(units, key=lambda unit: units[unit]),
        coverage=max((op.cores for op in ops), default=0) / k.CORES,
        intensity=intensity,
        attainment=flops / ns / peak if ns and peak else 0.0,
        ops=ops,
    )


def _together(compute: float, memory: float, ring: float, settings: CycleSettings) -> float:
    if settings.overlap == "serial":
        return compute + memory + ring
    return max(compute, memory + ring) if settings.overlap == "overlapped" else max(compute, memory, ring)


def _stick_rate(settings: CycleSettings, cores: int) -> float:
    """Bytes of device memory that one of `cores` active cores moves in a cycle: a static share of the card's."""
    return settings.hbm / settings.clock_ghz / max(cores, 1)


def _op_cycles(program: Program, op: Op, specs: dict[str, TensorSpec], settings: CycleSettings) -> OpCycles:
    if not math.prod(op.dims):
        return OpCycles(name=op.name, cores=0, us=0.0, compute=0.0, memory=0.0, communication=0.0)
    parts = [ranges for _, ranges in core_slices(program, op)]
    active = [ranges for ranges in parts if all(len(part) for part in ranges)]
    shapes = {tuple(len(part) for part in ranges): ranges for ranges in active}
    cores = len(active)
    compute = max((_compute(op, shape, settings) for shape in shapes), default=0.0)
    memory = max((_sticks(op, ranges, specs) for ranges in shapes.values()), default=0)
    ring = 0.0
    if op.name == "LxRelayout":
        ring = specs[op.output.tensor].layout.num_bytes / max(cores, 1) / settings.ring
    elif op.reduced and op.split and math.prod(op.split[-op.reduced :]) > 1:
        rounds = math.prod(op.split[-op.reduced :]) - 1
        ring = rounds * _output_bytes(op, next(iter(shapes)), specs) / settings.ring
    loading = memory * 128 / _stick_rate(settings, cores)
    us = _together(compute, loading, ring, settings) / settings.clock_ghz / 1000
    return OpCycles(name=op.name, cores=cores, us=us, compute=compute, memory=loading, communication=ring)


def _compute(op: Op, shape: tuple[int, ...], settings: CycleSettings) -> float:
    elements = math.prod(shape)
    if op.name.startswith("batchmatmul"):
        return 2.0 * elements / settings.systolic
    if op.name in ("LxRelayout", "identity", "fill", "gather", "scatter", "ReStickifyOpHBM"):
        return 0.0
    return sum(k.CYCLE_SLOW if part in SLOW else 1 for part in _parts(op.name)) * elements / k.CYCLE_LANES


def _parts(name: str) -> tuple[str, ...]:
    return COMPOSED.get(name, (name,))


def _flops(op: Op) -> int:
    return (2 if op.name.startswith("batchmatmul") else 1) * math.prod(op.dims)


def _sticks(op: Op, ranges: Ranges, specs: dict[str, TensorSpec]) -> int:
    """Distinct sticks of device memory that one core loads and stores; an indirect load adds those of its index."""
    total = 0
    for operand in _in_device_memory(op, specs):
        extents = [
            math.ceil(len(part) / specs[operand.tensor].layout.device_size[-1]) if dim == operand.stick else len(part)
            for dim, (part, stride) in enumerate(zip(ranges, operand.strides, strict=True))
            if stride or is_indexed(op, operand)
        ]
        total += math.prod(extents)
    return total


def _in_device_memory(op: Op, specs: dict[str, TensorSpec]) -> Iterator[Operand]:
    for operand in (*op.inputs, op.output):
        if isinstance(operand, Operand) and specs[operand.tensor].lx_address is None:
            yield operand


def _output_bytes(op: Op, shape: tuple[int, ...], specs: dict[str, TensorSpec]) -> float:
    kept = math.prod(shape[: len(shape) - op.reduced])
    return kept * 128 / specs[op.output.tensor].layout.device_size[-1]
