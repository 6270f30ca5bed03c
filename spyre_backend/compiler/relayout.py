"""Copies into the scratchpads: over the ring from one division to another (D7.6), or from an input in device memory.

A copy is cut like the access that is to read it, so that afterwards each core owns what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from spyre_backend.compiler.graph import Buffer
from spyre_backend.compiler.ownership import Division, division_of
from spyre_backend.emulator.clock_constants import HBM_BANDWIDTH, TURNAROUND
from spyre_backend.emulator.clock_rates import relayout_ns
from spyre_backend.program import Op, Operand


def copy_for(reader: Op, operand: Operand, target: Buffer, buffers: Mapping[str, Buffer], *, name: str) -> Op | None:
    """An operation ``name`` that copies ``operand``'s tensor into ``target`` as ``reader`` divides it.

    Dims that the tensor does not depend on are kept as counts of copies where they are divided.  None if a loop over
    the tensor alone would be cut elsewhere (another operand's sticks decide where ``reader`` cuts).
    """
    chosen = [d for d, s in enumerate(operand.strides) if s or (reader.split and reader.split[d] > 1)]
    strides = tuple(operand.strides[d] for d in chosen)
    stick = chosen.index(operand.stick) if operand.stick in chosen else None
    source = Operand(tensor=operand.tensor, strides=strides, offset=0, dtype=operand.dtype, stick=stick)
    copy = Op(
        name=name,
        dims=tuple(reader.dims[d] if operand.strides[d] else reader.split[d] for d in chosen),
        reduced=0,
        inputs=(source,),
        output=Operand(tensor=target.name, strides=strides, offset=0, dtype=operand.dtype, stick=stick),
        split=tuple(reader.split[d] for d in chosen),
        core_order=tuple(chosen.index(d) for d in reader.core_order if d in chosen),
        origin=reader.origin,
    )
    cut = division_of({**buffers, target.name: target}, copy, copy.output)
    return copy if cut == division_of(buffers, reader, operand) else None


def ring_ns(source: Division, target: Division, buffer: Buffer, share_bytes: int) -> float:
    """Nanoseconds to bring ``share_bytes`` to each core over the ring (D7.6).

    ``split``, the cores that each core's share comes from, is the number of pieces of the source that the target does
    not cut alike; a run is what lies together on both sides.
    """
    same = {(p.block, p.pieces) for p in target.parts}
    split = math.prod(p.pieces for p in source.parts if (p.block, p.pieces) not in same)
    runs = math.ceil(share_bytes / 128 / _run_sticks(buffer, source, target))
    return relayout_ns(share_bytes, split, runs)


def round_trip_ns(num_bytes: int) -> float:
    """Nanoseconds to write ``num_bytes`` to device memory and to read them again (D7.1)."""
    return num_bytes * (2 / HBM_BANDWIDTH + TURNAROUND)


def _run_sticks(buffer: Buffer, *divisions: Division) -> int:
    """Consecutive sticks of ``buffer`` that none of the divisions cuts."""
    assert buffer.layout is not None
    sizes, steps = buffer.layout.device_size[:-1], buffer.layout.stride_map[:-1]
    run = 1
    for extent, step in zip(reversed(sizes), reversed(steps), strict=True):
        if step <= 0 or extent == 1:
            continue
        cuts = [p.block for d in divisions for p in d.parts if step <= p.block < step * extent]
        if cuts:
            return int(run * max(min(cuts) // step, 1))
        run *= extent
    return run
