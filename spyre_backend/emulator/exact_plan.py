"""Prepares a program for exact execution: its layouts, the sticks of every access, the slice of every core.

What a compiler can get wrong without any data being looked at is found here: layouts that do not address their tensor,
illegal stick expressions, cores that leave elements out, addresses that are missing or leave the scratchpad.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from spyre_backend.capabilities.model import Limits
from spyre_backend.emulator.exact_access import Ranges, StickAccess
from spyre_backend.emulator.exact_errors import AddressError, CapacityError, PaddingError, SliceError, StickError
from spyre_backend.emulator.exact_layout import STICK_BYTES, DeviceLayout
from spyre_backend.emulator.plan import Step
from spyre_backend.emulator.primitives import TOPK
from spyre_backend.program import Op, Operand, Program, TensorSpec
from spyre_backend.slices import cores_used, dim_unit, owns_result, slices_of

DEVICE_MEMORY_ONLY = frozenset({"ReStickifyOpHBM", "gather", "scatter"})
"""Operations that the scratchpad does not serve: restickify and indirect accesses (D4.5)."""
_ANY_STICK = frozenset({"identity", "ReStickifyOpHBM", "gather", "LxRelayout"})
"""Operations whose operands may run along other loops than their result (D2.4)."""


ZERO_IS_IDENTITY = frozenset({"sum", "mean", "any", "exx2_mean", "exx2_meansq"})
"""Reductions that lanes of zeros do not change."""


@dataclass(frozen=True, slots=True)
class Life:
    """First and last operation that touch a tensor."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class ExactOp:
    """One operation with everything known before data: accesses as sticks, slices, and which inputs it may overwrite.

    ``groups`` are the parts of the result: the core that owns it, its ranges of the kept loops, and each core that
    contributes with its ranges of all loops.  ``yielding`` names inputs whose place the output may take.
    """

    position: int
    op: Op
    step: Step
    reads: tuple[StickAccess | None, ...]
    write: StickAccess
    units: tuple[int, ...]
    groups: tuple[tuple[int, Ranges, tuple[tuple[int, Ranges], ...]], ...]
    yielding: frozenset[str]

    @property
    def kept(self) -> int:
        """Number of loops that the result has."""
        return len(self.op.dims) - self.op.reduced


def lives(program: Program) -> dict[str, Life]:
    """The life of each tensor that an operation touches."""
    found: dict[str, Life] = {}
    for position, op in enumerate(program.ops):
        for operand in (*op.inputs, op.output):
            if isinstance(operand, Operand):
                first = found[operand.tensor].first if operand.tensor in found else position
                found[operand.tensor] = Life(first, position)
    return found


def prepare_op(
    program: Program,
    position: int,
    step: Step,
    layouts: dict[str, DeviceLayout],
    life: dict[str, Life],
    limits: Limits,
) -> ExactOp:
    """Translate and check one operation; ExactExecutionError without its place in the program."""
    op = program.ops[position]
    units = tuple(dim_unit(program, op, dim) for dim in range(len(op.dims)))
    slices = [(core, ranges) for core, ranges in slices_of(op, units) if all(len(r) for r in ranges) or 0 in op.dims]
    _check_slices(op, slices, limits)
    out_dims = step.output.size if op.name in TOPK else op.dims[: len(op.dims) - op.reduced]
    try:
        reads = tuple(
            StickAccess(layouts[item.tensor], item, op.dims, write=False)
            if isinstance(item, Operand) and not (op.name == "gather" and index == 0)
            else None
            for index, item in enumerate(op.inputs)
        )
        write = StickAccess(layouts[op.output.tensor], op.output, out_dims, write=True)
    except AddressError as error:
        if error.core is None and error.loops is not None:
            error.core = next((c for c, rs in slices if _inside(error.loops, rs)), None)
        raise
    _check_sticks(op, reads, write)
    _check_mask(op, reads)
    return ExactOp(
        position=position,
        op=op,
        step=step,
        reads=reads,
        write=write,
        units=units,
        groups=_groups(op, slices),
        yielding=_yielding(program, op, position, life),
    )


def _inside(loops: Sequence[int], ranges: Ranges) -> bool:
    return all(i in r for i, r in zip(loops, ranges, strict=False))


def _check_slices(op: Op, slices: Sequence[tuple[int, Ranges]], limits: Limits) -> None:
    """Together the cores execute every element once (D4.4); only a matmul divides what it reduces."""
    if op.split and len(op.split) != len(op.dims):
        raise SliceError(f"split {list(op.split)} for {len(op.dims)} dims")
    if any(pieces < 1 for pieces in op.split) or cores_used(op) > limits.num_cores:
        raise SliceError(f"split {list(op.split)} needs {cores_used(op)} cores of {limits.num_cores}")
    kept = len(op.dims) - op.reduced
    if op.name != "batchmatmul" and any(pieces > 1 for pieces in op.split[kept:]):
        raise SliceError(f"split {list(op.split)} divides a reduced dim of {op.name}")
    if 0 in op.dims:
        return
    volume = sum(math.prod(len(r) for r in ranges) for _, ranges in slices)
    distinct = len({tuple((r.start, r.stop) for r in ranges) for _, ranges in slices})
    if distinct != len(slices) or volume != math.prod(op.dims):
        raise SliceError(
            f"split {list(op.split)} in core order {list(op.core_order)} gives {distinct} different slices of {volume} "
            f"elements in all; the operation has {math.prod(op.dims)}"
        )


def _check_sticks(op: Op, reads: Sequence[StickAccess | None], write: StickAccess) -> None:
    """Operands and result agree on the loop along the stick (D2.4)."""
    kept = len(op.dims) - op.reduced
    if op.name == "batchmatmul":
        wanted = (len(op.dims) - 1, len(op.dims) - 2)
        for access, stick in zip(reads, wanted, strict=True):
            if access is not None and op.dims[stick] > 1 and access.stick != stick:
                raise StickError(
                    f"loop {access.stick} runs along its stick, matmul wants {stick}", tensor=access.tensor
                )
        return
    if op.name in _ANY_STICK or op.name in TOPK:
        return
    for access in reads[:1] if op.name == "scatter" else reads:
        if access is None or access.stick is None:
            continue
        if access.stick < kept and access.stick != write.stick:
            raise StickError(
                f"loop {access.stick} runs along its stick, loop {write.stick} along that of {write.tensor!r}",
                tensor=access.tensor,
            )


def tail_lanes(op: Op, access: StickAccess | None) -> int:
    """Lanes of the last stick that a reduction along the stick takes in beyond its elements; 0 if it has none."""
    if access is None or access.stick is None or access.stick < len(op.dims) - op.reduced or op.name == "batchmatmul":
        return 0
    return -(access.lane + access.extent) % access.eps


def _check_mask(op: Op, reads: Sequence[StickAccess | None]) -> None:
    """A reduction along the stick masks exactly the lanes beyond its elements, or adds zeros up (D2.3)."""
    lanes = tail_lanes(op, reads[0] if reads else None)
    masked = op.attrs.get("masked_lanes", 0)
    if masked not in (0, lanes):
        raise PaddingError(f"{masked} lanes are masked, {lanes} are beyond the elements", tensor=op.output.tensor)
    if lanes and not masked and op.name not in ZERO_IS_IDENTITY:
        raise PaddingError(f"{op.name} takes in {lanes} lanes beyond its elements", tensor=op.output.tensor)


def _groups(
    op: Op, slices: Sequence[tuple[int, Ranges]]
) -> tuple[tuple[int, Ranges, tuple[tuple[int, Ranges], ...]], ...]:
    kept = len(op.dims) - op.reduced
    members: dict[tuple[tuple[int, int], ...], list[tuple[int, Ranges]]] = {}
    for core, ranges in slices:
        members.setdefault(tuple((r.start, r.stop) for r in ranges[:kept]), []).append((core, ranges))
    groups = []
    for group in members.values():
        ordered = sorted(group, key=lambda item: tuple(r.start for r in item[1][kept:]))
        owner = next((core for core, _ in ordered if owns_result(op, core)), ordered[0][0])
        groups.append((owner, ordered[0][1][:kept], tuple(ordered)))
    return tuple(groups)


def _yielding(program: Program, op: Op, position: int, life: dict[str, Life]) -> frozenset[str]:
    """Inputs that die here and are read exactly where the result goes: it may take their bytes (D4.5)."""
    target = program.tensor(op.output.tensor)
    by_name: dict[str, list[Operand]] = {}
    for operand in op.inputs:
        if isinstance(operand, Operand) and operand.tensor != op.output.tensor:
            by_name.setdefault(operand.tensor, []).append(operand)
    found = set()
    for name, operands in by_name.items():
        spec = program.tensor(name)
        alike = (spec.layout.device_size, spec.layout.stride_map) == (
            target.layout.device_size,
            target.layout.stride_map,
        )
        same = all((o.strides, o.offset) == (op.output.strides, op.output.offset) for o in operands)
        direct = not op.reduced and op.name != "scatter"
        if spec.kind == "temp" and life[name].last == position and alike and same and direct:
            found.add(name)
    return frozenset(found)


def check_residents(program: Program, ops: Sequence[ExactOp], limits: Limits) -> dict[str, int]:
    """Sticks that each scratchpad resident reserves on a core: those of the largest share (D4.5).

    Raises:
        AddressError, SliceError, CapacityError: with the tensor.
    """
    specs = {spec.name: spec for spec in program.tensors if spec.lx_address is not None}
    reserved = dict.fromkeys(specs, 0)
    written: set[str] = set()
    for item in ops:
        touched = [item.write, *(read for read in item.reads if read is not None)]
        if item.op.name in DEVICE_MEMORY_ONLY:
            wrong = next((access.tensor for access in touched if access.tensor in specs), None)
            if wrong is not None:
                raise AddressError(
                    f"{item.op.name} reads and writes device memory only, this tensor is in the scratchpads",
                    tensor=wrong,
                ).located(program.name, item.position, item.op.name)
        spec = specs.get(item.write.tensor)
        if spec is None:
            continue
        if spec.name in written:
            raise SliceError("a scratchpad resident is written by more than one operation", tensor=spec.name).located(
                program.name, item.position, item.op.name
            )
        written.add(spec.name)
        shares = [len(held_by(item.write, ranges)) for _, ranges in item_shares(item)]
        reserved[spec.name] = max(shares, default=0)
        try:
            _check_place(spec, reserved[spec.name], limits)
        except (AddressError, CapacityError) as error:
            raise error.located(program.name, item.position, item.op.name) from None
    return reserved


def item_shares(item: ExactOp) -> list[tuple[int, Ranges]]:
    """Each core that owns part of the result, with its ranges of the result's loops."""
    full = item.write.dims
    shares = []
    for owner, kept, _ in item.groups:
        ranges = (*kept, *(range(n) for n in full[len(kept) :]))
        shares.append((owner, ranges))
    return shares


def _check_place(spec: TensorSpec, sticks: int, limits: Limits) -> None:
    address = spec.lx_address
    assert address is not None
    if spec.kind != "temp" or address < 0 or address % STICK_BYTES:
        raise AddressError(
            "only a temp at a multiple of 128 bytes lives in the scratchpads", tensor=spec.name, address=address
        )
    end = address + sticks * STICK_BYTES
    if end > limits.lx_usable_bytes:
        raise CapacityError(
            f"{sticks} sticks on a core end at byte {end}, beyond the {limits.lx_usable_bytes} that may be planned",
            tensor=spec.name,
            address=address,
        )


def pool_sticks(program: Program, layouts: dict[str, DeviceLayout], limits: Limits) -> int:
    """Sticks of the bundle's region of device memory, where temporaries lie that are not in the scratchpads.

    Raises:
        AddressError: a temporary has no address, or two, or a misaligned one.
        CapacityError: the region is larger than a pool may be.
    """
    end = 0
    for spec in program.tensors:
        if spec.kind != "temp" or spec.lx_address is not None:
            if spec.hbm_offset is not None:
                raise AddressError("it has an offset, too, in the region of temporaries", tensor=spec.name)
            continue
        if spec.hbm_offset is None:
            raise AddressError(
                "its address is still symbolic: neither in the scratchpads nor an offset", tensor=spec.name
            )
        if spec.hbm_offset < 0 or spec.hbm_offset % STICK_BYTES:
            raise AddressError("an offset must be a multiple of 128 bytes", tensor=spec.name, address=spec.hbm_offset)
        end = max(end, spec.hbm_offset // STICK_BYTES + layouts[spec.name].num_sticks)
    if end * STICK_BYTES > limits.pool_bytes_max:
        raise CapacityError(f"a region of {end * STICK_BYTES} bytes, at most {limits.pool_bytes_max}")
    return end


def held_by(write: StickAccess, ranges: Ranges) -> torch.Tensor:
    """The sticks of a resident that the core with these ranges holds, ascending."""
    held: torch.Tensor = torch.unique(write.region(ranges).sticks)
    return held
