"""Agreement between the operations that write a tensor and those that read it.

A scratchpad resident serves a reader without a move only if every core reads what it wrote itself (#3378).  Two means
serve that end: where reader and writer cut a tensor alike, the reader's cores are numbered like the writer's; and a
reader may take over the writer's cut altogether (setting ``follow``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from spyre_backend.compiler.graph import Buffer, operands
from spyre_backend.compiler.ownership import Division, Part, division_of
from spyre_backend.program import Op, Operand

Held = dict[str, set[Division]]
"""The divisions in which each temporary is at hand so far: that of its writer, and those that earlier readers need."""


def renumbered(buffers: Mapping[str, Buffer], op: Op, held: Held) -> Op:
    """``op`` with the core numbering under which the fewest bytes of its operands have to move.

    The split stays; among equals the numbering that ``op`` has is kept.
    """
    if len(op.core_order) < 2 or not any(o.tensor in held for o in operands(op)):
        return op
    orders = [op.core_order, *(o for o in itertools.permutations(op.core_order) if o != op.core_order)]
    return min((replace(op, core_order=order) for order in orders), key=lambda o: moved_bytes(buffers, o, held))


def moved_bytes(buffers: Mapping[str, Buffer], op: Op, held: Held) -> int:
    """Bytes of temporaries that ``op`` reads in a division in which they are not at hand."""
    read = {o for o in operands(op) if o.tensor in held}
    return sum(_num_bytes(buffers, o) for o in read if division_of(buffers, op, o) not in held[o.tensor])


def remember(buffers: Mapping[str, Buffer], op: Op, held: Held) -> None:
    """Note what is at hand after ``op``; a tensor written in pieces is not followed."""
    for operand in operands(op):
        if operand.tensor in held:
            held[operand.tensor].add(division_of(buffers, op, operand))
    name = op.output.tensor
    held[name] = set() if name in held else {division_of(buffers, op, op.output)}


def followers(buffers: Mapping[str, Buffer], op: Op, held: Held) -> Iterator[Op]:
    """``op`` divided like each division at hand of what it reads, the largest operand first."""
    for operand in sorted(operands(op), key=lambda o: -_num_bytes(buffers, o)):
        for wanted in sorted(held.get(operand.tensor, ()), key=str):
            found = None if wanted.sums or wanted.copies else _projected(wanted.parts, op, operand)
            if found is not None:
                followed = replace(op, split=found[0], core_order=found[1])
                if division_of(buffers, followed, operand) == wanted:
                    yield followed


def _projected(parts: Sequence[Part], op: Op, operand: Operand) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The split and numbering of ``op`` that cut ``operand``'s tensor into ``parts``, or None if its loops cannot."""
    kept = len(op.dims) - op.reduced
    split, weights = [1] * len(op.dims), dict[int, int]()
    for part in parts:
        block, pieces, weight = part.block, part.pieces, part.weight
        while pieces > 1:
            dim = next((d for d in range(kept) if _reaches(operand.strides[d], op.dims[d], block)), None)
            if dim is None or dim in weights:
                return None
            here = min(pieces, -(-op.dims[dim] * operand.strides[dim] // block))
            if pieces % here:
                return None
            split[dim], weights[dim] = here, weight
            block, pieces, weight = operand.strides[dim] * op.dims[dim], pieces // here, weight * here
    return tuple(split), tuple(sorted(weights, key=lambda d: weights[d]))


def _reaches(stride: int, extent: int, block: int) -> bool:
    return stride > 0 and stride <= block < stride * extent and block % stride == 0


def _num_bytes(buffers: Mapping[str, Buffer], operand: Operand) -> int:
    layout = buffers[operand.tensor].layout
    assert layout is not None
    return layout.num_bytes
