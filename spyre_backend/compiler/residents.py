"""Which tensors of a bundle could stay in the scratchpads, and why the others cannot (D4.5).

Time is counted in half steps: operation ``i`` happens at moment ``2 i``; copies inserted before it happen at
``2 i - 1``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spyre_backend.compiler import relayout
from spyre_backend.compiler.graph import DEVICE_ITEMSIZE, Buffer, operands
from spyre_backend.compiler.lx_solvers import Group, Item
from spyre_backend.compiler.ownership import Division, division_of, is_whole, share_sticks, units_of
from spyre_backend.compiler.settings import Settings
from spyre_backend.program import Op, Operand

STICK_BYTES = 128
MEMORY_ONLY = frozenset({"ReStickifyOpHBM", "gather", "scatter"})
"""Operations that read and write device memory only (D4.5: read by restickify, index or indirectly accessed)."""


@dataclass(frozen=True, slots=True)
class Use:
    """Operation ``position`` of the bundle accesses a tensor through ``operand``."""

    position: int
    op: Op
    operand: Operand


@dataclass(frozen=True, slots=True)
class Copy:
    """An operation to insert before operation ``position``, and the buffer that it fills."""

    position: int
    op: Op
    buffer: Buffer


@dataclass(slots=True)
class Candidates:
    """What may stay.

    ``reads`` says which item an access at a position reads if that item's group stays; ``copies`` are the
    copies that belong to a group; ``reasons`` say why a tensor is no candidate.
    """

    buffers: Mapping[str, Buffer]
    ops: Sequence[Op]
    chosen: Settings
    capacity: int
    groups: list[Group] = field(default_factory=list)
    reads: dict[tuple[int, Operand], str] = field(default_factory=dict)
    copies: dict[str, list[Copy]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    made: dict[str, Buffer] = field(default_factory=dict)

    def share_bytes(self, use: Use) -> int:
        """Bytes that the core with the largest share of the tensor holds."""
        buffer = self.buffers[use.operand.tensor]
        return STICK_BYTES * share_sticks(buffer, use.op, use.operand, units_of(self.buffers, use.op))

    def all_buffers(self) -> dict[str, Buffer]:
        """The bundle's buffers and those that copies would fill."""
        return {**self.buffers, **self.made}


def find(
    ops: Sequence[Op], buffers: Mapping[str, Buffer], temporaries: frozenset[str], chosen: Settings, capacity: int
) -> Candidates:
    """All candidates among the temporaries and, if ``chosen`` asks for clones, the inputs of a bundle."""
    state = Candidates(buffers=buffers, ops=ops, chosen=chosen, capacity=capacity)
    writes, reads = _uses(ops)
    for name in writes:
        if name in temporaries:
            reason = _consider(state, name, writes[name], reads.get(name, []))
            if reason is not None:
                state.reasons[name] = reason
    if chosen.lx_input_clones:
        for name, uses in reads.items():
            if name not in temporaries and name not in writes and len(uses) > 1:
                _consider_clones(state, name, uses)
    if chosen.lx_in_place:
        state.groups = [_with_replacements(state, group) for group in state.groups]
    return state


def _uses(ops: Sequence[Op]) -> tuple[dict[str, list[Use]], dict[str, list[Use]]]:
    writes: dict[str, list[Use]] = {}
    reads: dict[str, list[Use]] = {}
    for position, op in enumerate(ops):
        for operand in operands(op):
            reads.setdefault(operand.tensor, []).append(Use(position, op, operand))
        writes.setdefault(op.output.tensor, []).append(Use(position, op, op.output))
    return writes, reads


def _consider(state: Candidates, name: str, writes: Sequence[Use], reads: Sequence[Use]) -> str | None:
    """Make ``name`` a candidate, or say why it is none."""
    writer, buffer = writes[0], state.buffers[name]
    reason = _excluded(writes, reads, buffer)
    if reason is not None:
        return reason
    home = division_of(state.buffers, writer.op, writer.operand)
    share = state.share_bytes(writer)
    if share > state.capacity:
        return f"{share} bytes on one core, the scratchpad has {state.capacity}"
    direct: list[Use] = []
    others: dict[Division, list[Use]] = {}
    for use in reads:
        wanted = division_of(state.buffers, use.op, use.operand)
        if wanted == home:
            direct.append(use)
        else:
            others.setdefault(wanted, []).append(use)
    if others and not state.chosen.lx_relayout:
        use = next(iter(others.values()))[0]
        return f"divided into {home}, but {use.op.name} at {use.position} reads {next(iter(others))}"
    moves, reason = _relayouts(state, name, home, others)
    if reason is not None:
        return reason
    state.reads.update({(use.position, use.operand): name for use in direct})
    last = max([*(2 * use.position for use in direct), *(item.first for item in moves)])
    item = Item(name=name, first=2 * writer.position, last=last, num_bytes=share)
    saved = 2 * _device_bytes(buffer)
    state.groups.append(Group(name=name, items=(item, *moves), saved=saved))
    return None


def _excluded(writes: Sequence[Use], reads: Sequence[Use], buffer: Buffer) -> str | None:
    """The rules of D4.5 that look at one access at a time."""
    if not reads:
        return "nobody reads it"
    if len(writes) > 1 or not is_whole(writes[0].op, writes[0].operand, buffer):
        return "written in pieces"
    if reads[0].position <= writes[0].position:
        return "read before it is written"
    for use in (writes[0], *reads):
        if use.op.name in MEMORY_ONLY or "index_stride" in use.op.attrs:
            return f"{use.op.name} at {use.position} works on device memory"
    part = next((use for use in reads if not is_whole(use.op, use.operand, buffer)), None)
    return None if part is None else f"{part.op.name} at {part.position} reads a part of it"


def _relayouts(
    state: Candidates, name: str, home: Division, others: Mapping[Division, Sequence[Use]]
) -> tuple[list[Item], str | None]:
    """An item and a copy over the ring for each other division, or why the ring does not help."""
    buffer = state.buffers[name]
    items: list[Item] = []
    copies: list[Copy] = []
    spent = 0.0
    for number, (wanted, uses) in enumerate(others.items()):
        first = uses[0]
        share = state.share_bytes(first)
        target = replace(buffer, name=f"{name}_relayout{number}", external=False)
        moved = relayout.copy_for(first.op, first.operand, target, state.buffers, name="LxRelayout")
        if moved is None:
            return [], f"no ring copy is cut as {first.op.name} at {first.position} reads it"
        if share > state.capacity:
            return [], f"{first.op.name} at {first.position} needs {share} bytes of it on each core"
        spent += relayout.ring_ns(home, wanted, buffer, share)
        items.append(Item(name=target.name, first=2 * first.position - 1, last=2 * uses[-1].position, num_bytes=share))
        copies.append(Copy(first.position, moved, target))
    limit = relayout.round_trip_ns(_device_bytes(buffer))
    if spent > limit:
        return [], f"the ring would take {spent / 1e3:.1f} us, device memory {limit / 1e3:.1f} us"
    for item, copy, uses in zip(items, copies, others.values(), strict=True):
        state.made[item.name] = copy.buffer
        state.copies.setdefault(name, []).append(copy)
        state.reads.update({(use.position, use.operand): item.name for use in uses})
    return items, None


def _consider_clones(state: Candidates, name: str, uses: Sequence[Use]) -> None:
    """A copy in the scratchpads of an input, for each division in which it is read more than once."""
    buffer = state.buffers[name]
    alike: dict[Division, list[Use]] = {}
    for use in uses:
        served = use.op.name not in MEMORY_ONLY and "index_stride" not in use.op.attrs
        if served and is_whole(use.op, use.operand, buffer):
            alike.setdefault(division_of(state.buffers, use.op, use.operand), []).append(use)
    for number, (wanted, group) in enumerate(alike.items()):
        positions = {use.position for use in group}
        share = state.share_bytes(group[0])
        if len(positions) < 2 or wanted.copies or share > state.capacity:
            continue
        target = replace(buffer, name=f"{name}_clone{number}", external=False)
        first = group[0]
        clone = relayout.copy_for(first.op, first.operand, target, state.buffers, name="identity")
        if clone is None:
            continue
        item = Item(name=target.name, first=2 * first.position - 1, last=2 * group[-1].position, num_bytes=share)
        state.groups.append(Group(name=target.name, items=(item,), saved=(len(positions) - 1) * _device_bytes(buffer)))
        state.made[target.name] = target
        state.copies[target.name] = [Copy(first.position, clone, target)]
        state.reads.update({(use.position, use.operand): target.name for use in group})


def _with_replacements(state: Candidates, group: Group) -> Group:
    """The group, its items naming whose place they may take: an operand that is read like the result is written."""
    items = []
    for item in group.items:
        position = item.first // 2
        written = item.first % 2 == 0
        names = _replaceable(state, position) if written else ()
        items.append(replace(item, replaces=names))
    return replace(group, items=tuple(items))


def _replaceable(state: Candidates, position: int) -> tuple[str, ...]:
    op = state.ops[position]
    if op.reduced or op.name == "batchmatmul":
        return ()
    result = state.buffers[op.output.tensor]
    alike: dict[str, bool] = {}
    for operand in operands(op):
        item = state.reads.get((position, operand))
        if item is None:
            continue
        buffer = state.buffers[operand.tensor]
        assert buffer.layout is not None
        assert result.layout is not None
        fits = (
            operand.strides == op.output.strides
            and operand.offset == op.output.offset
            and DEVICE_ITEMSIZE[buffer.dtype] == DEVICE_ITEMSIZE[result.dtype]
            and buffer.layout.device_size == result.layout.device_size
            and buffer.layout.stride_map == result.layout.stride_map
        )
        alike[item] = alike.get(item, True) and fits
    return tuple(item for item, fits in alike.items() if fits)


def _device_bytes(buffer: Buffer) -> int:
    assert buffer.layout is not None
    return buffer.layout.num_bytes
