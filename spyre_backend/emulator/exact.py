"""The exact executor: runs a program core by core and tile by tile, in sticks, inside bounded scratchpads.

Where the fast executor sees whole tensors, this one sees what the card sees: sticks with garbage in their padding,
memory without content, the slice of one core, residents of its scratchpad at their addresses.  Numbers agree with the
fast executor up to the order in which sums are accumulated; a program that only works because nobody looks is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor

from spyre_backend.capabilities import load
from spyre_backend.capabilities.model import Numerics
from spyre_backend.emulator.context import TORCH_DTYPES, ExecutionError
from spyre_backend.emulator.exact_access import Ranges, Region, StickAccess
from spyre_backend.emulator.exact_errors import (
    AddressError,
    CapacityError,
    ExactExecutionError,
    PaddingError,
    UninitialisedError,
)
from spyre_backend.emulator.exact_kernels import REDUCTIONS, finish, join_cores, multiply_tile, reduce_tile, settle
from spyre_backend.emulator.exact_layout import STICK_BYTES, DeviceLayout
from spyre_backend.emulator.exact_plan import (
    ExactOp,
    check_residents,
    lives,
    pool_sticks,
    prepare_op,
    tail_lanes,
)
from spyre_backend.emulator.exact_state import State
from spyre_backend.emulator.exact_tiles import tile_extents, tiles
from spyre_backend.emulator.fast import allocate, finished
from spyre_backend.emulator.plan import failure, prepare
from spyre_backend.emulator.primitives import TOPK
from spyre_backend.program import Program

_NO_LANE_BY_LANE = frozenset({"gather", "scatter", "LxRelayout", "ReStickifyOpHBM"})
"""Operations whose lanes are not those of their operands: what they leave in padding is a setting, or a copy."""

Observer = Callable[[ExactOp, State, bool], None]
"""Called before (False) and after (True) each operation with the memory as it is then."""


def on_host() -> ExitStack:
    """Context in which torch makes tensors on the CPU and computes as asked, whatever the caller has set."""
    stack = ExitStack()
    if torch.get_default_device().type != "cpu":
        stack.enter_context(torch.device("cpu"))
    if torch.is_autocast_enabled("cpu"):
        stack.enter_context(torch.autocast("cpu", enabled=False))
    return stack


class ExactPlan:
    """A program prepared for exact execution; holds no tensor data and may be run from several threads."""

    def __init__(self, program: Program, numerics: Numerics | None = None) -> None:
        """Prepare and check `program`.

        Raises:
            ExactExecutionError: what the hardware could not do, found before any data is looked at.
            SpyreRuntimeError: the program is malformed (see ``plan.prepare``).
        """
        with on_host():
            self._prepare(program, numerics)

    def _prepare(self, program: Program, numerics: Numerics | None) -> None:
        self.program = program
        self.limits = load(program.release).limits
        self.lives = lives(program)
        try:
            self.layouts = {spec.name: DeviceLayout(spec) for spec in program.tensors}
            self.pool_sticks = pool_sticks(program, self.layouts, self.limits)
        except ExactExecutionError as error:
            raise error.located(program.name) from None
        self.ops = []
        for step in prepare(program, numerics):
            op = program.ops[step.position]
            if 0 in step.output.size:
                continue
            try:
                self.ops.append(prepare_op(program, step.position, step, self.layouts, self.lives, self.limits))
            except ExactExecutionError as error:
                raise error.located(program.name, step.position, op.name) from None
        self.reserved = check_residents(program, self.ops, self.limits)

    def run(
        self, tensors: dict[str, Tensor], replaceable: Collection[str] = (), observer: Observer | None = None
    ) -> None:
        """Execute on `tensors`, as :meth:`spyre_backend.emulator.fast.Plan.run` does.

        Args:
            tensors: flat working tensors of the arguments; written in place.
            replaceable: outputs that need not be given: the executor puts its own tensor there.
            observer: sees the memory before and after each operation.

        Raises:
            ExactExecutionError: an address, lifetime, slice or capacity is violated; an element is read unwritten.
            SpyreRuntimeError: an operation failed.
        """
        with torch.no_grad(), on_host():
            try:
                state = State(
                    self.program, self.layouts, self.pool_sticks, self.reserved, tensors, frozenset(replaceable)
                )
            except ExactExecutionError as error:
                raise error.located(self.program.name) from None
            for item in self.ops:
                self._execute(item, state, observer)
            self._finish(state, tensors)

    def _execute(self, item: ExactOp, state: State, observer: Observer | None) -> None:
        if observer is not None:
            observer(item, state, False)
        try:
            _OpRun(self, item, state).run()
        except ExactExecutionError as error:
            raise error.located(self.program.name, item.position, item.op.name) from None
        except (ExecutionError, RuntimeError, IndexError, ValueError) as error:
            raise failure(self.program, item.position, error) from error
        if observer is not None:
            observer(item, state, True)
        state.end(item, [name for name, life in self.lives.items() if life.last == item.position])

    def _finish(self, state: State, tensors: dict[str, Tensor]) -> None:
        """Bring what was written back to the host's form."""
        written = {op.output.tensor for op in self.program.ops}
        for name in self.program.arguments:
            spec = self.program.tensor(name)
            if name not in written:
                continue
            if name not in tensors:
                tensors[name] = allocate(spec, filled=True)
            try:
                state.drain(name, tensors[name])
            except UninitialisedError as error:
                raise error.located(self.program.name) from None


class _OpRun:
    """One operation under way."""

    def __init__(self, plan: ExactPlan, item: ExactOp, state: State) -> None:
        self.item = item
        self.op = item.op
        self.context = item.step.context
        self.state = state
        self.budget = plan.limits.lx_bytes - plan.limits.lx_reserved_bytes - self._resident_bytes(plan)

    def _resident_bytes(self, plan: ExactPlan) -> int:
        """Where the scratchpad begins to be free: behind the last resident that lives now."""
        top = 0
        for name, sticks in plan.reserved.items():
            life, address = plan.lives[name], plan.program.tensor(name).lx_address
            if life.first <= self.item.position <= life.last and address is not None:
                top = max(top, address + sticks * STICK_BYTES)
        return top

    def run(self) -> None:
        self.state.begin(self.item)
        for owner, kept, members in self.item.groups:
            try:
                self._group(owner, kept, members)
            except CapacityError as error:
                error.core = owner
                raise

    def _group(self, owner: int, kept: Ranges, members: Sequence[tuple[int, Ranges]]) -> None:
        """One part of the result, tile by tile, each from all cores that contribute to it."""
        first = members[0][1]
        extents = tile_extents(first, self.item.units, self._cuttable(first), self._working_set, self.budget)
        for part in tiles(kept, extents[: len(kept)]):
            result = self._part(part, members, extents)
            ranges = part
            if self.op.name in TOPK:
                ranges = (*part, range(self.item.write.dims[-1]))
            result, _ = finished(result, self.item.step, fresh=False)
            self._check_zeros(owner, part)
            write = self.item.write
            region = write.region(ranges)
            if self.op.name == "scatter":
                self._scatter(owner, ranges, result, region)
                continue
            self.state.write(self.item, owner, region, write.untile(result, region, ranges))

    def _cuttable(self, ranges: Ranges) -> list[int]:
        """Loops that a tile may cut: the kept ones from outside to inside, then those that are reduced."""
        kept = self.item.kept
        if self.op.name in TOPK:
            return list(range(kept))
        sticks = {access.stick for access in (self.item.write, *self.item.reads) if access is not None}
        order = [d for d in range(kept) if d not in sticks] + [d for d in range(kept) if d in sticks]
        return order + list(range(kept, len(self.op.dims)))

    def _working_set(self, extents: Sequence[int]) -> int:
        """Bytes of whole sticks that a tile loads and stores beside the residents; an indirect access brings a stick
        for each of the result."""
        item = self.item
        accesses = [item.write, *(item.write if access is None else access for access in self._loads())]
        return sum(a.count(extents) for a in accesses if a.tensor not in self.state.residents) * STICK_BYTES

    def _loads(self) -> list[StickAccess | None]:
        """Accesses of the tensor operands; None for the table of a gather."""
        tensors = [not isinstance(given, Tensor) for given in self.item.step.inputs]
        return [access for access, loaded in zip(self.item.reads, tensors, strict=True) if loaded]

    def _part(self, part: Ranges, members: Sequence[tuple[int, Ranges]], extents: Sequence[int]) -> Tensor:
        """The unrounded result over one tile of the kept loops."""
        if not self.op.reduced:
            return self._pointwise(members[0][0], part)
        if self.op.name in TOPK:
            core, ranges = members[0]
            full = (*part, *ranges[len(part) :])
            return self.item.step.function(self.context, self._expanded(self._load(0, core, full), full))
        totals = []
        count = 1
        for dim in self.op.dims[self.item.kept :]:
            count *= dim
        for core, ranges in members:
            total: Tensor | None = None
            for reduced in tiles(ranges[len(part) :], extents[len(part) :]):
                total = self._continue(core, total, (*part, *reduced))
            assert total is not None
            totals.append(settle(self.context, total))
        return finish(self.context, join_cores(self.context, totals), count)

    def _continue(self, core: int, total: Tensor | None, ranges: Ranges) -> Tensor:
        if self.op.name == "batchmatmul":
            a, b = (self._expanded(self._load(i, core, ranges), ranges) for i in range(2))
            return multiply_tile(self.context, total, a, b)
        if self.op.name not in REDUCTIONS:
            raise ExecutionError("the exact executor knows no reduction of this name")
        x = self._expanded(self._load(0, core, ranges), ranges)
        access = self.item.reads[0]
        return reduce_tile(self.context, total, x, None if access is None else access.stick)

    def _expanded(self, x: Tensor, ranges: Ranges) -> Tensor:
        """A tile expanded along the reduced loops."""
        kept = self.item.kept
        return x.expand([*x.shape[:kept], *(len(r) for r in ranges[kept:])]) if x.dim() else x

    def _pointwise(self, core: int, ranges: Ranges) -> Tensor:
        if self.op.name == "gather":
            return self._gather(core, ranges)
        tiles_ = [self._load(index, core, ranges) for index in range(len(self.op.inputs))]
        return self.item.step.function(self.context, *tiles_)

    def _load(self, index: int, core: int, ranges: Ranges) -> Tensor:
        """The tile of one input, of size 1 along loops that it does not move along; constants as they are."""
        given = self.item.step.inputs[index]
        if isinstance(given, Tensor):
            return given
        access = self.item.reads[index]
        assert access is not None
        if any(not len(r) for r in ranges):
            wanted = TORCH_DTYPES[access.layout.spec.dtype]
            return torch.zeros([len(r) for r in ranges], dtype=wanted)
        region = access.region(ranges)
        tile = access.tile(self.state.read(self.item, core, access.tensor, region), region)
        self._check_tail(access, core, region, ranges)
        return tile

    def _check_tail(self, access: StickAccess, core: int, region: Region, ranges: Ranges) -> None:
        """A reduction that masks nothing adds the lanes behind its last element: they must be zero."""
        lanes = tail_lanes(self.op, access)
        if not lanes or self.op.attrs.get("masked_lanes"):
            return
        if access.stick is not None and ranges[access.stick].stop == access.extent:
            behind = access.beyond(self.state.peek(core, access.tensor, region), region, lanes)
            if behind is not None and bool((behind != 0).any()):
                raise PaddingError(
                    f"the reduction takes in {lanes} lanes of garbage behind its last element",
                    core=core,
                    tensor=access.tensor,
                )

    def _check_zeros(self, core: int, part: Ranges) -> None:
        """Padding that is said to be zero is what the operation makes of its operands' padding: compute it."""
        write = self.item.write
        stick, spec = write.stick, write.layout.spec
        if spec.padding != "zero" or self.op.reduced or self.op.name in _NO_LANE_BY_LANE or stick is None:
            return
        lanes = -(write.lane + write.extent) % write.eps
        if not lanes or part[stick].stop != write.extent:
            return
        edge = (*part[:stick], range(write.extent - 1, write.extent), *part[stick + 1 :])
        operands: list[Tensor] = []
        for index, access in enumerate(self.item.reads):
            if access is None or access.stick != stick:
                operands.append(self._load(index, core, edge))
                continue
            region = access.region(edge)
            behind = access.beyond(self.state.peek(core, access.tensor, region), region, lanes)
            if behind is None or access.eps != write.eps:
                return
            operands.append(behind)
        made, _ = finished(self.item.step.function(self.context, *operands), self.item.step, fresh=False)
        if bool((made != 0).any()):
            raise PaddingError(
                "its padding is said to be zero, but becomes something else", core=core, tensor=spec.name
            )

    def _scatter(self, core: int, ranges: Ranges, values: Tensor, region: Region) -> None:
        """Rows of a tile go where the index points, counted in steps of the outermost device dim (D2.4)."""
        index, write = self._load(1, core, ranges), self.item.write
        rows = write.layout.sizes[0]
        step = write.layout.num_sticks // rows
        indexed = [loop for loop, extent in enumerate(index.shape) if extent > 1]
        if len(indexed) > 1:
            raise ExecutionError("the index of a store varies along more than one loop")
        for place, row in enumerate(index.flatten().tolist()):
            if not 0 <= row < rows:
                raise AddressError(
                    f"index {row} is outside the {rows} rows of size {list(write.layout.spec.size)}",
                    core=core,
                    tensor=write.tensor,
                )
            part, taken = values, list(ranges)
            for loop in indexed:
                part, taken[loop] = values.narrow(loop, place, 1), range(1)
            moved = Region(region.sticks + row * step, region.shape, region.first, region.length)
            self.state.write(self.item, core, moved, write.untile(part, region, tuple(taken)))

    def _gather(self, core: int, ranges: Ranges) -> Tensor:
        """Elements of the table that the index points at, each read from the stick where it lies."""
        table = self.op.inputs[0]
        layout = self.state.layouts[table.tensor]  # type: ignore[union-attr]
        index = self._load(1, core, ranges).to(torch.int64)
        offsets = torch.tensor(table.offset)  # type: ignore[union-attr]
        for loop, (part, stride) in enumerate(zip(ranges, table.strides, strict=True)):  # type: ignore[union-attr]
            if stride and self.op.dims[loop] > 1:
                shape = [-1 if d == loop else 1 for d in range(len(ranges))]
                offsets = offsets + (torch.arange(part.start, part.stop) * stride).view(shape)
        offsets = offsets + index * self.context.integer("index_stride")
        stick, lane, good = layout.locate(offsets)
        good = good & (index >= 0)
        if not bool(good.all()):
            bad = int(index.expand_as(offsets)[~good][0])
            raise AddressError(
                f"index {bad} is outside the table of size {list(layout.spec.size)}", core=core, tensor=layout.spec.name
            )
        return self.state.pick(layout.spec.name, stick, lane)
