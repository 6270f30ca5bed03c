"""Bytes that a bundle moves between device memory and the cores (D7.1, "Counting rules").

An external input is charged once, however many operations read it; a temporary in device memory costs a write and a
read, one in a scratchpad nothing; outputs are always charged.  Bytes are whole sticks of the padded device layout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from spyre_backend.program import Op, Operand, Program, TensorSpec

STICK_BYTES = 128


@dataclass(slots=True)
class Traffic:
    """Bytes of one operation: `read` and `written` as charged, `touched` with every repeated access counted again."""

    read: int = 0
    written: int = 0
    touched: int = 0

    @property
    def charged(self) -> int:
        """Read and written together."""
        return self.read + self.written


def count(program: Program) -> list[Traffic]:
    """The traffic of each operation, in program order; a tensor is charged to the operation that reads it first."""
    specs = {spec.name: spec for spec in program.tensors}
    seen: dict[tuple[str, bool], set[tuple[object, ...]]] = {}
    charged: dict[tuple[str, bool], int] = {}
    result = []
    for op in program.ops:
        traffic = Traffic()
        for operand, written in [*((o, False) for o in op.inputs if isinstance(o, Operand)), (op.output, True)]:
            spec = specs[operand.tensor]
            if spec.lx_address is not None:
                continue
            num_bytes = access_bytes(spec, op, operand)
            traffic.touched += num_bytes
            key, form = (spec.name, written), _form(op, operand)
            if form in seen.setdefault(key, set()):
                continue
            seen[key].add(form)
            whole = max(spec.layout.num_bytes, num_bytes)
            fresh = min(num_bytes, whole - charged.get(key, 0))
            charged[key] = charged.get(key, 0) + fresh
            if written:
                traffic.written += fresh
            else:
                traffic.read += fresh
        result.append(traffic)
    return result


def _form(op: Op, operand: Operand) -> tuple[object, ...]:
    """What an access touches, whatever the iteration space around it."""
    moving = sorted((s, n) for s, n in zip(operand.strides, op.dims, strict=True) if s and n > 1)
    indirect = "index_stride" in op.attrs
    return (op.name, *op.dims, operand.offset, *moving) if indirect else (operand.offset, *moving)


def is_indexed(op: Op, operand: Operand) -> bool:
    """Whether an index chooses the rows of this operand: the table of a gather, the tensor that a scatter writes."""
    return (op.name == "gather" and operand == op.inputs[0]) or (op.name == "scatter" and operand == op.output)


def access_bytes(spec: TensorSpec, op: Op, operand: Operand) -> int:
    """Bytes of the sticks that one access touches; all of the layout when it reaches every element."""
    extents = [n for s, n in zip(operand.strides, op.dims, strict=True) if s]
    sticks = 1
    for dim, (stride, extent) in enumerate(zip(operand.strides, op.dims, strict=True)):
        if stride and dim == operand.stick:
            sticks *= math.ceil(extent / spec.layout.device_size[-1])
        elif stride:
            sticks *= extent
    if is_indexed(op, operand):
        picks = math.prod(n for s, n in zip(operand.strides, op.dims, strict=True) if not s)
        return min(spec.layout.num_bytes, picks * sticks * STICK_BYTES)
    if math.prod(extents) >= math.prod(n for n, s in zip(spec.size, spec.stride, strict=True) if s):
        return spec.layout.num_bytes
    return min(spec.layout.num_bytes, sticks * STICK_BYTES)
