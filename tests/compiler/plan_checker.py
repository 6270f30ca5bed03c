"""Walks a program core by core and checks what its scratchpads hold, by the definitions of ``spyre_backend.slices``."""

from __future__ import annotations

import math
from collections import defaultdict

from spyre_backend.compiler.residents import MEMORY_ONLY
from spyre_backend.program import Op, Operand, Program, TensorSpec
from spyre_backend.slices import core_slices, cores_used, held_sticks, owned_slices

Slot = tuple[int, int]
Content = tuple[str, int]


def check_program(program: Program, capacity: int, cores: int = 32) -> None:
    """Fails at the first operation that reads what its core does not hold, or at bytes with two owners."""
    specs = {spec.name: spec for spec in program.tensors}
    residents = {name for name, spec in specs.items() if spec.lx_address is not None}
    last = _last_uses(program)
    memory: dict[Slot, Content] = {}
    for position, op in enumerate(program.ops):
        assert cores_used(op) <= cores
        assert not residents.intersection(_tensors(op)) or op.name not in MEMORY_ONLY
        assert op.name != "LxRelayout" or residents.issuperset(_tensors(op))
        for operand in op.inputs:
            if isinstance(operand, Operand) and operand.tensor in residents:
                _check_read(program, op, operand, specs[operand.tensor], memory)
        if op.output.tensor in residents:
            _write(program, position, specs, last, memory, capacity)
    _check_region(program, last)


def _tensors(op: Op) -> set[str]:
    return {o.tensor for o in (*op.inputs, op.output) if isinstance(o, Operand)}


def _last_uses(program: Program) -> dict[str, int]:
    return {name: position for position, op in enumerate(program.ops) for name in _tensors(op)}


def _held(memory: dict[Slot, Content], spec: TensorSpec) -> dict[int, set[int]]:
    found: dict[int, set[int]] = defaultdict(set)
    for (core, _), (name, stick) in memory.items():
        if name == spec.name:
            found[core].add(stick)
    return found


def _check_read(program: Program, op: Op, operand: Operand, spec: TensorSpec, memory: dict[Slot, Content]) -> None:
    held = _held(memory, spec)
    anywhere = set().union(*held.values()) if held else set()
    for core, ranges in core_slices(program, op):
        needed = set(held_sticks(spec, operand, ranges))
        there = anywhere if op.name == "LxRelayout" else held[core]
        assert needed <= there, f"{op.name}: core {core} reads {len(needed - there)} sticks of {spec.name} it lacks"


def _write(
    program: Program,
    position: int,
    specs: dict[str, TensorSpec],
    last: dict[str, int],
    memory: dict[Slot, Content],
    capacity: int,
) -> None:
    op = program.ops[position]
    spec = specs[op.output.tensor]
    assert spec.kind == "temp"
    assert spec.lx_address is not None
    written: set[int] = set()
    for core, ranges in owned_slices(program, op):
        sticks = held_sticks(spec, op.output, ranges)
        written.update(sticks)
        for place, stick in enumerate(sticks):
            address = spec.lx_address + 128 * place
            assert address + 128 <= capacity
            old = memory.get((core, address))
            if old is not None and old[0] != spec.name and last[old[0]] >= position:
                assert _in_place(op, specs[old[0]], spec, last[old[0]] == position), f"{spec.name} over {old[0]}"
            memory[core, address] = (spec.name, stick)
    logical = set(range(math.prod(spec.layout.device_size[:-1])))
    assert written == logical, f"{op.name} leaves {len(logical - written)} sticks of {spec.name} unwritten"


def _in_place(op: Op, old: TensorSpec, new: TensorSpec, ends: bool) -> bool:
    accesses = [o for o in op.inputs if isinstance(o, Operand) and o.tensor == old.name]
    return (
        ends
        and op.name != "LxRelayout"
        and old.lx_address == new.lx_address
        and old.layout.device_size == new.layout.device_size
        and old.layout.stride_map == new.layout.stride_map
        and all(o.strides == op.output.strides and o.offset == op.output.offset for o in accesses)
    )


def _check_region(program: Program, last: dict[str, int]) -> None:
    """Temporaries outside the scratchpads have bytes of their own while they live."""
    first: dict[str, int] = {}
    for position, op in enumerate(program.ops):
        for name in _tensors(op):
            first.setdefault(name, position)
    region = [spec for spec in program.tensors if spec.kind == "temp" and spec.lx_address is None]
    for index, a in enumerate(region):
        assert a.hbm_offset is not None
        assert a.hbm_offset % 128 == 0
        for b in region[:index]:
            assert b.hbm_offset is not None
            together = first[a.name] <= last[b.name] and first[b.name] <= last[a.name]
            apart = a.hbm_offset + a.layout.num_bytes <= b.hbm_offset or (
                b.hbm_offset + b.layout.num_bytes <= a.hbm_offset
            )
            assert apart or not together, f"{a.name} and {b.name} overlap in device memory"
