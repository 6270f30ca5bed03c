"""Stage 7, scratchpad planning (D4.5): which temporaries of a bundle stay in each core's LX.

A first-fit planner: a temporary stays if every operation that touches it is one the LX may serve, its producer and
consumers divide it alike, and it fits beside the temporaries that live at the same time.  Nothing is evicted.
"""

from __future__ import annotations

from dataclasses import dataclass

from spyre_backend import capabilities
from spyre_backend.compiler.graph import Buffer, operands
from spyre_backend.program import Op, Operand

NOT_SERVED = frozenset({"ReStickifyOpHBM", "gather"})
"""Operations that read device memory only (D4.5: read by restickify, indirectly accessed)."""


@dataclass(frozen=True, slots=True)
class Life:
    """First and last operation that touch a temporary, and its bytes on one core."""

    name: str
    first: int
    last: int
    num_bytes: int


def plan(ops: list[Op], buffers: dict[str, Buffer], temporaries: frozenset[str]) -> dict[str, int]:
    """LX byte address of each temporary that stays in the scratchpad."""
    limit = capabilities.current().limits.lx_usable_bytes
    placed: list[tuple[Life, int]] = []
    for life in sorted(_lives(ops, buffers, temporaries), key=lambda item: (item.first, -item.num_bytes)):
        address = _first_fit(life, placed, limit)
        if address is not None:
            placed.append((life, address))
    return {life.name: address for life, address in placed}


def _lives(ops: list[Op], buffers: dict[str, Buffer], temporaries: frozenset[str]) -> list[Life]:
    touched: dict[str, list[tuple[int, Op, Operand]]] = {name: [] for name in temporaries}
    for position, op in enumerate(ops):
        for operand in (op.output, *operands(op)):
            if operand.tensor in touched:
                touched[operand.tensor].append((position, op, operand))
    lives = []
    for name, uses in touched.items():
        if (
            len(uses) < 2
            or any(op.name in NOT_SERVED for _, op, _ in uses)
            or len({_slices(o, op) for _, op, o in uses}) > 1
        ):
            continue
        layout = buffers[name].layout
        assert layout is not None
        cores = 1
        for _, pieces in _slices(uses[0][2], uses[0][1]):
            cores *= pieces
        per_core = -(-layout.num_bytes // cores)
        lives.append(Life(name, uses[0][0], uses[-1][0], -(-per_core // 128) * 128))
    return lives


def _slices(operand: Operand, op: Op) -> frozenset[tuple[int, int]]:
    """How an operation divides a tensor: pieces along each of its strides."""
    return frozenset((s, n) for s, n in zip(operand.strides, op.split, strict=True) if s and n > 1)


def _first_fit(life: Life, placed: list[tuple[Life, int]], limit: int) -> int | None:
    address = 0
    overlapping = sorted(
        (a, a + other.num_bytes) for other, a in placed if other.first <= life.last and life.first <= other.last
    )
    for start, end in overlapping:
        if address + life.num_bytes <= start:
            break
        address = max(address, end)
    return address if address + life.num_bytes <= limit else None
