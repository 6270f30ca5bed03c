"""Stage 7, scratchpad planning (D4.5): what of a bundle stays in each core's LX, and where.

:mod:`~spyre_backend.compiler.residents` finds the candidates, a solver of :mod:`~spyre_backend.compiler.lx_solvers`
chooses among them, and the bundle is rewritten: clones of inputs and copies over the ring become operations of their
own.  Nothing is evicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from spyre_backend import capabilities
from spyre_backend.compiler import decisions, lx_solvers, residents, settings
from spyre_backend.compiler.errors import CompileSettingError
from spyre_backend.compiler.graph import Buffer, operands
from spyre_backend.compiler.lx_solvers import Item
from spyre_backend.program import Const, Op, Operand


@dataclass(frozen=True, slots=True)
class Plan:
    """The bundle with its copies, the buffers that these fill, the residents' addresses, and the story for people."""

    ops: list[Op]
    made: dict[str, Buffer] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def plan(ops: Sequence[Op], buffers: Mapping[str, Buffer], temporaries: frozenset[str]) -> Plan:
    """Residents of one bundle under the settings in force.

    Args:
        ops: divided operations in execution order.
        buffers: all buffers they use, with layouts.
        temporaries: those that only this bundle makes and reads.
    """
    chosen = settings.current()
    if not chosen.lx_planning:
        return Plan(ops=list(ops), notes=["scratchpad planning is off"])
    capacity = capabilities.current().limits.lx_usable_bytes
    found = residents.find(ops, buffers, temporaries, chosen, capacity)
    try:
        solve = lx_solvers.solver(chosen.lx_planner)
    except settings.SettingError as error:
        raise CompileSettingError(str(error)) from error
    groups = [group for group in found.groups if _stays(group.name)]
    addresses = solve(groups, capacity)
    made = {name: buffer for name, buffer in found.made.items() if name in addresses}
    return Plan(
        ops=_rewritten(found, addresses),
        made=made,
        addresses=addresses,
        notes=_story(found, addresses, temporaries, capacity),
    )


def _stays(name: str) -> bool:
    return decisions.take("resident", name, lambda: f"{name} stays in the scratchpads")


def _rewritten(found: residents.Candidates, addresses: Mapping[str, int]) -> list[Op]:
    """The operations, reading the copies that stay, each copy in front of its first reader."""
    inserted: dict[int, list[Op]] = {}
    for group, copies in found.copies.items():
        if group in addresses:
            for copy in copies:
                inserted.setdefault(copy.position, []).append(copy.op)
    result: list[Op] = []
    for position, op in enumerate(found.ops):
        result += inserted.get(position, [])
        targets = {o: item for o in operands(op) if (item := found.reads.get((position, o), "")) in addresses}
        result.append(replace(op, inputs=tuple(_redirected(item, targets) for item in op.inputs)) if targets else op)
    return result


def _redirected(item: Operand | Const, targets: Mapping[Operand, str]) -> Operand | Const:
    return replace(item, tensor=targets[item]) if isinstance(item, Operand) and item in targets else item


def _story(
    found: residents.Candidates, addresses: Mapping[str, int], temporaries: frozenset[str], capacity: int
) -> list[str]:
    """One line for each resident and for each temporary that does not stay."""
    items = {item.name: item for group in found.groups for item in group.items}
    moved = {copy.buffer.name: copy.op.name for copies in found.copies.values() for copy in copies}
    lines = []
    for name, address in sorted(addresses.items(), key=lambda pair: (items[pair[0]].first, pair[1])):
        item = items[name]
        lines.append(f"{name}: LX {address}..{address + item.num_bytes} on each core, {_life(item)}")
        replaced = [n for n in item.replaces if addresses.get(n) == address]
        if replaced:
            lines[-1] += f", in place of {replaced[0]}"
        if name in moved:
            lines[-1] += ", copied over the ring" if moved[name] == "LxRelayout" else ", cloned from device memory"
    reasons = {**found.reasons}
    for group in found.groups:
        if group.items[0].name not in addresses:
            reasons[group.name] = "no gap beside those that live at the same time"
    lines += [f"{name}: device memory, {reason}" for name, reason in reasons.items()]
    peak = max((address + items[name].num_bytes for name, address in addresses.items()), default=0)
    staying = sum(name in addresses for name in temporaries)
    lines.append(f"{staying} of {len(temporaries)} temporaries stay, {peak} of {capacity} bytes used")
    return lines


def _life(item: Item) -> str:
    return f"operations {(item.first + 1) // 2} to {(item.last + 1) // 2}"


__all__ = ["Plan", "plan"]
