"""Which part of an operation each core executes: the meaning of ``Op.split`` and ``Op.core_order`` (D4.4)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from spyre_backend.program import Op, Operand, Program


def cores_used(op: Op) -> int:
    """Number of cores that take part in ``op``; 1 for an undivided one."""
    return math.prod(op.split)


def dim_unit(program: Program, op: Op, dim: int) -> int:
    """Elements that stay together when dim ``dim`` is divided: a stick where an operand's stick runs along it."""
    for operand in (op.output, *op.inputs):
        if isinstance(operand, Operand) and operand.stick == dim:
            return program.tensor(operand.tensor).layout.device_size[-1]
    return 1


def core_digits(op: Op, core: int) -> tuple[int, ...]:
    """The slice index along each dim of ``op`` that core number ``core`` executes."""
    order = op.core_order or tuple(reversed(range(len(op.dims))))
    digits = [0] * len(op.dims)
    for dim in order:
        core, digits[dim] = divmod(core, op.split[dim] if op.split else 1)
    return tuple(digits)


def core_slices(program: Program, op: Op) -> Iterator[tuple[int, tuple[range, ...]]]:
    """Each taking-part core with its range of every iteration dim; together they cover ``op.dims`` exactly once."""
    units = [dim_unit(program, op, dim) for dim in range(len(op.dims))]
    for core in range(cores_used(op)):
        digits = core_digits(op, core)
        ranges = []
        for dim, extent in enumerate(op.dims):
            pieces = op.split[dim] if op.split else 1
            step = math.ceil(math.ceil(extent / units[dim]) / pieces) * units[dim]
            ranges.append(range(min(digits[dim] * step, extent), min((digits[dim] + 1) * step, extent)))
        yield core, tuple(ranges)
