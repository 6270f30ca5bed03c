"""The ways in which one operation can run: which loop dim goes along the stick, and what has to move for it (D2.4).

An :class:`Option` says what an operation costs in moves and what stick its result gets, given the sticks of the tensors
that it reads.  Stage 5 chooses one option for each operation; nothing is changed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from spyre_backend.compiler.errors import CompileRefusal, refuse
from spyre_backend.compiler.graph import EPS_BY_DTYPE, Buffer, contiguous_strides, operands
from spyre_backend.compiler.layouts import IllegalAccess, variable_along
from spyre_backend.compiler.restickify_cost import restickify_ps
from spyre_backend.program import Op, Operand

ANY_INPUT = frozenset({"identity"})
"""Copies take any input and give the default layout (D2.4: clone, contiguous)."""

Reason = Literal["slice", "operands", "matmul-a", "matmul-b", "reduction", "pool", "result"]


@dataclass(frozen=True, slots=True)
class Move:
    """A restickify of a view: its result is contiguous in ``size`` and has dim ``stick`` along the stick.

    ``source`` has one stride for each dim of ``size``.  It reads a tensor, or the result of ``base`` if that is given.
    Equal moves are done once; ``cost`` is in picoseconds (D7.3).
    """

    source: Operand
    size: tuple[int, ...]
    stick: int
    base: Move | None = None
    from_stick: int | None = field(default=None, compare=False)
    cost: int = field(default=0, compare=False)

    @property
    def tensor(self) -> str:
        """The tensor that is moved in the end."""
        return self.source.tensor


@dataclass(frozen=True, slots=True)
class Placed:
    """An operand as its operation reads it: from its tensor, or from the result of the last of ``moves``."""

    operand: Operand
    moves: tuple[Move, ...] = ()
    reason: Reason = "operands"


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run an operation.

    ``stick`` is the dim that its result has along the stick, ``layout`` the host dim along the stick of the tensor that
    it writes and ``written`` the dim of the operation there.  Where ``stick`` and ``written`` differ, the result goes
    through a temporary, at ``extra`` picoseconds; the temporary then serves whoever would ask for the move ``gives``.
    ``rank`` orders what the rule of D2.6 (move all but the majority) would take; None for options it does not see.
    """

    stick: int | None
    inputs: tuple[Placed, ...]
    layout: int | None
    written: int | None
    extra: int = 0
    gives: Move | None = None
    rank: tuple[float, int] | None = None

    @property
    def through(self) -> bool:
        """Whether the result is written through a temporary."""
        return self.extra > 0

    @property
    def moves(self) -> tuple[Move, ...]:
        """The moves of all operands, in the order in which they have to happen."""
        return tuple(move for placed in self.inputs for move in placed.moves)


def error(op: Op, rule: str, detail: str) -> CompileRefusal:
    """The refusal of ``op`` for breaking ``rule``."""
    tensors = [*operands(op)]
    return refuse(
        rule,
        op=op.name,
        detail=detail,
        shapes=[[n for n, s in zip(op.dims, t.strides, strict=True) if s] for t in tensors],
        dtypes=[t.dtype for t in tensors],
        origin=op.origin,
    )


def access_error(op: Op, problem: IllegalAccess) -> CompileRefusal:
    """The refusal of an access, in the device's own words (D2.5, D2.7)."""
    if problem.rule == "view-stick-split":
        text = f"Could not find a host dimension matching stick expr {problem.expression}"
    else:
        text = (
            f"Unexpected stick expression {problem.expression}: expected Mod(var, 64), a bare variable, 0, or any of "
            "those with a constant offset"
        )
    return error(op, problem.rule, text)


def depends(op: Op, operand: Operand, dim: int | None) -> bool:
    """Whether the access changes along iteration dim ``dim``."""
    return dim is not None and operand.strides[dim] != 0 and op.dims[dim] > 1


def output_dims(op: Op) -> tuple[int, ...]:
    """The iteration space as the output sees it: topk writes ``k`` of the last dim."""
    return (*op.dims[:-1], int(op.attrs["k"])) if "k" in op.attrs else op.dims


def host_dim(op: Op, buffer: Buffer, dim: int | None) -> int | None:
    """The host dim of a fresh output that iteration dim ``dim`` runs along with step 1."""
    if dim is None:
        return None
    stride = op.output.strides[dim]
    return next((d for d, s in enumerate(buffer.stride) if s == stride and buffer.size[d] > 1), None)


def forms(op: Op, operand: Operand, buffer: Buffer, stick: int | None) -> list[tuple[Placed, int | None]]:
    """The operand as it lies, with the dim along its stick; a slice that begins inside a stick is read from a copy of
    its tensor in which another dim of whole sticks runs along the stick (D6.11).

    Raises:
        CompileRefusal: neither is legal.
    """
    try:
        along = variable_along(operand, op.dims, buffer, stick)
        return [(Placed(replace(operand, stick=along)), along)]
    except IllegalAccess as problem:
        others = [d for d in reversed(range(len(buffer.size))) if d != stick and buffer.size[d] % buffer.eps == 0]
        found = rebased(op, operand, buffer, stick, others) if problem.rule == "slice-stick-offset" else []
        if not found:
            raise access_error(op, problem) from None
        return found


def rebased(
    op: Op, operand: Operand, buffer: Buffer, stick: int | None, targets: Sequence[int]
) -> list[tuple[Placed, int | None]]:
    """The operand read from a moved copy of its whole tensor, for each host dim of ``targets`` that makes it legal."""
    if buffer.stride != contiguous_strides(buffer.size):
        return []
    found: list[tuple[Placed, int | None]] = []
    for dim in targets:
        if dim == stick or buffer.size[dim] <= 1:
            continue
        try:
            along = variable_along(operand, op.dims, buffer, dim)
        except IllegalAccess:
            continue
        whole = Operand(tensor=buffer.name, strides=buffer.stride, offset=0, dtype=buffer.dtype)
        base = make_move(whole, buffer.size, dim, buffer, stick)
        if base is not None:
            found.append((Placed(replace(operand, stick=along), (base,), "slice"), along))
    return found


def is_partial(op: Op, operand: Operand, buffer: Buffer) -> bool:
    """Whether the access reaches fewer elements than its tensor has."""
    reached = math.prod(n for n, s in zip(op.dims, operand.strides, strict=True) if s)
    return reached < math.prod(buffer.size)


def make_move(
    operand: Operand, dims: Sequence[int], stick: int, buffer: Buffer, host_stick: int | None, base: Move | None = None
) -> Move | None:
    """The move of a view over ``dims`` to stick ``stick``; None if the view cannot be read as it lies.

    ``host_stick`` is the dim along the stick of ``buffer``, the tensor that the view reads; if that is the result of
    another move, ``base`` is that move.
    """
    kept = _memory_order(operand, dims)
    size = tuple(dims[i] for i in kept)
    source = replace(operand, strides=tuple(operand.strides[i] for i in kept), stick=None)
    try:
        before = variable_along(source, size, buffer, host_stick)
    except IllegalAccess:
        return None
    target = kept.index(stick)
    cost = restickify_ps(size, EPS_BY_DTYPE[operand.dtype], before, target)
    return Move(source=source, size=size, stick=target, base=base, from_stick=before, cost=cost)


def _memory_order(operand: Operand, dims: Sequence[int]) -> list[int]:
    """The dims that the access changes along, outermost in memory first: equal views of two operations look equal."""
    kept = [i for i, (s, n) in enumerate(zip(operand.strides, dims, strict=True)) if s and n > 1]
    return sorted(kept, key=lambda i: -operand.strides[i])


def read_after(move: Move, operand: Operand, dims: Sequence[int], stick: int) -> Operand:
    """The operand that reads the result of ``move`` in place of the view ``operand`` over ``dims``."""
    kept = _memory_order(operand, dims)
    strides = [0] * len(dims)
    for i, step in zip(kept, contiguous_strides(move.size), strict=True):
        strides[i] = step
    return replace(operand, strides=tuple(strides), offset=0, stick=stick)


def along(
    op: Op, form: tuple[Placed, int | None], stick: int | None, buffer: Buffer, host_stick: int | None, reason: Reason
) -> Placed | None:
    """The operand with iteration dim ``stick`` along its stick, moved if need be; constant along it is as good.

    None if there is no such form: an operand that runs along another stick and is constant along this one would have
    to be scattered, which the device cannot (D5.2).
    """
    placed, current = form
    if current == stick or (current is None and not depends(op, placed.operand, stick)):
        return placed
    if stick is None or not depends(op, placed.operand, stick):
        return None
    base = placed.moves[-1] if placed.moves else None
    where = host_stick if base is None else _host_of(buffer, base)
    move = make_move(placed.operand, op.dims, stick, buffer, where, base)
    if move is None:
        return None
    return Placed(read_after(move, placed.operand, op.dims, stick), (*placed.moves, move), reason)


def _host_of(buffer: Buffer, base: Move) -> int:
    """The host dim of ``buffer`` that the whole-tensor move ``base`` puts along the stick."""
    kept = [d for d, n in enumerate(buffer.size) if n > 1]
    return kept[base.stick]
