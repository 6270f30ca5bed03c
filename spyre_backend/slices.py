"""Which part of an operation each core executes, and what of a tensor its scratchpad then holds (D4.4, D4.5).

Ranges: ``Op.split`` and ``Op.core_order`` give every taking-part core one range of each iteration dim
(:func:`core_slices`).

Residents: a temp with an ``lx_address`` lives in the scratchpads.

* One operation writes it, whole.  A core *owns* the elements that it wrote itself.  Where reduced dims are divided (the
  K of a matmul) the partial sums meet on the core whose slice index along them is 0: that one owns the result, the
  others nothing (:func:`owned_slices`).
* A core holds the sticks of its elements, whole, packed in the order of their device addresses, from ``lx_address`` on
  (:func:`held_sticks`).  The address and the size reserved (that of the largest share) are the same on all cores.
* An operation may read a resident only where every core owns all elements in its range, a broadcast operand included.
  Only ``LxRelayout`` reads what other cores own; with dims of stride 0 it gives several cores the same elements.
* Nothing is evicted: bytes belong to a resident from the operation that writes it to the last one that reads it, both
  included.  The exception is reuse in place: an operation may write its output at the address of an input that it is
  the last to read, if both have the same device layout and itemsize, and the same strides and offset in this operation,
  so that every element is read exactly where its result goes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from spyre_backend.program import Op, Operand, Program, StickLayout, TensorSpec

Ranges = tuple[range, ...]


def cores_used(op: Op) -> int:
    """Number of cores that take part in ``op``; 1 for an undivided one."""
    return math.prod(op.split)


def dim_unit(program: Program, op: Op, dim: int) -> int:
    """Elements that stay together when dim ``dim`` is divided: the longest stick of an operand that runs along it."""
    unit = 1
    for operand in (op.output, *op.inputs):
        if isinstance(operand, Operand) and operand.stick == dim:
            unit = max(unit, program.tensor(operand.tensor).layout.device_size[-1])
    return unit


def core_digits(op: Op, core: int) -> tuple[int, ...]:
    """The slice index along each dim of ``op`` that core number ``core`` executes."""
    order = op.core_order or tuple(reversed(range(len(op.dims))))
    digits = [0] * len(op.dims)
    for dim in order:
        core, digits[dim] = divmod(core, op.split[dim] if op.split else 1)
    return tuple(digits)


def core_slices(program: Program, op: Op) -> Iterator[tuple[int, Ranges]]:
    """Each taking-part core with its range of every iteration dim; together they cover ``op.dims`` exactly once."""
    units = [dim_unit(program, op, dim) for dim in range(len(op.dims))]
    return slices_of(op, units)


def slices_of(op: Op, units: Sequence[int]) -> Iterator[tuple[int, Ranges]]:
    """:func:`core_slices` with the unit of each dim already known."""
    for core in range(cores_used(op)):
        digits = core_digits(op, core)
        ranges = []
        for dim, extent in enumerate(op.dims):
            pieces = op.split[dim] if op.split else 1
            step = math.ceil(math.ceil(extent / units[dim]) / pieces) * units[dim]
            ranges.append(range(min(digits[dim] * step, extent), min((digits[dim] + 1) * step, extent)))
        yield core, tuple(ranges)


def owns_result(op: Op, core: int) -> bool:
    """Whether ``core`` ends up with its part of the result: index 0 along every divided reduced dim."""
    kept = len(op.dims) - op.reduced
    return not any(core_digits(op, core)[kept:])


def owned_slices(program: Program, op: Op) -> Iterator[tuple[int, Ranges]]:
    """Each core that owns part of the output, with its ranges of the dims that are not reduced."""
    kept = len(op.dims) - op.reduced
    for core, ranges in core_slices(program, op):
        if owns_result(op, core):
            yield core, ranges[:kept]


def held_sticks(spec: TensorSpec, operand: Operand, ranges: Ranges) -> tuple[int, ...]:
    """Device addresses, in sticks from the start of the tensor, of all sticks that an access touches; ascending.

    The position of a stick in this tuple, times 128, is its byte offset from ``lx_address`` on the core that wrote
    ``ranges`` through ``operand``.
    """
    offsets = {operand.offset}
    for dim, (stride, part) in enumerate(zip(operand.strides, ranges, strict=False)):
        if dim == operand.stick and len(part) > 1:  # one element of each stick is enough
            steps = range(part.start, part.stop, spec.layout.device_size[-1])
            offsets = {base + stride * (part.stop - 1) for base in offsets} | {
                base + stride * index for base in offsets for index in steps
            }
        elif stride:
            offsets = {base + stride * index for base in offsets for index in part}
    return tuple(sorted({stick_address(spec.layout, spec, offset) for offset in offsets}))


def stick_address(layout: StickLayout, spec: TensorSpec, offset: int) -> int:
    """The stick, counted from the start of the tensor in device memory, that holds host element ``offset`` (D2.1).

    ``offset`` is in elements from the tensor's first one, along the tensor's own strides.
    """
    position = dict.fromkeys(range(len(spec.size)), 0)
    for dim in sorted(range(len(spec.size)), key=lambda d: -spec.stride[d]):
        if spec.size[dim] > 1 and spec.stride[dim]:
            position[dim], offset = divmod(offset, spec.stride[dim])
    address = 0
    for extent, step in zip(layout.device_size[:-1], layout.stride_map[:-1], strict=True):
        address = address * extent + (_coordinate(spec, layout, position, step) if step > 0 and extent > 1 else 0)
    return address


def _coordinate(spec: TensorSpec, layout: StickLayout, position: dict[int, int], step: int) -> int:
    """The index along the device dim of host stride ``step``."""
    stick, eps = layout.stick_dim, layout.device_size[-1]
    if stick is not None and spec.size[stick] > eps and step == spec.stride[stick] * eps:
        return position[stick] // eps
    return next(p for d, p in position.items() if spec.stride[d] == step and spec.size[d] > 1)
