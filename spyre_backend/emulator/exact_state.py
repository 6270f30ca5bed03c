"""All memory of a program under way: device memory of its arguments and temporaries, and the scratchpads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from spyre_backend.emulator.context import TORCH_DTYPES
from spyre_backend.emulator.exact_access import Region
from spyre_backend.emulator.exact_errors import AddressError, SliceError, UninitialisedError
from spyre_backend.emulator.exact_layout import STICK_BYTES, DeviceLayout
from spyre_backend.emulator.exact_memory import Bank, Share
from spyre_backend.emulator.exact_plan import ExactOp, held_by, item_shares
from spyre_backend.program import Program


class State:
    """Memory of one run.

    Attributes:
        program: what runs.
        layouts: of every tensor.
        residents: names of tensors that live in the scratchpads.
    """

    def __init__(
        self,
        program: Program,
        layouts: Mapping[str, DeviceLayout],
        pool_sticks: int,
        reserved: Mapping[str, int],
        tensors: dict[str, Tensor],
        replaceable: frozenset[str],
    ) -> None:
        self.layouts = layouts
        self.residents = frozenset(reserved)
        self.program = program
        self._tensors = tensors
        self._names = [spec.name for spec in program.tensors]
        self._number = {name: number for number, name in enumerate(self._names)}
        self._device: dict[str, Share] = {}
        self._scratch: dict[str, dict[int, Share]] = {name: {} for name in reserved}
        self._banks: dict[int, Bank] = {}
        self._rings: dict[str, tuple[list[int], Tensor]] = {}
        ends = [(program.tensor(name).lx_address or 0) // STICK_BYTES + count for name, count in reserved.items()]
        self._scratch_sticks = max(ends, default=0)
        self._aliases = _aliases(program, tensors)
        pool = Bank(pool_sticks, self._names)
        for spec in program.tensors:
            if spec.kind != "temp":
                self._device[spec.name] = self._argument(spec.name, spec.name in replaceable)
            elif spec.hbm_offset is not None:
                first = spec.hbm_offset // STICK_BYTES
                self._device[spec.name] = Share(layouts[spec.name], pool, self._number[spec.name], first)

    def _own(self, name: str) -> Share:
        """Device memory of its own."""
        layout = self.layouts[name]
        return Share(layout, Bank(layout.num_sticks, self._names), self._number[name])

    def _argument(self, name: str, replaceable: bool) -> Share:
        share = self._own(name)
        given = self._tensors.get(name)
        if given is None:
            if not replaceable:
                raise AddressError("its symbolic address was never set: no memory was given for it", tensor=name)
        elif self.program.tensor(name).kind != "output" or name in self._aliases:
            share.fill(share.layout.filled(given))
        return share

    def begin(self, item: ExactOp) -> None:
        """Make room for the result of an operation."""
        name = item.write.tensor
        if name not in self.residents:
            return
        self._rings.pop(name, None)
        first = (self.program.tensor(name).lx_address or 0) // STICK_BYTES
        for core, ranges in item_shares(item):
            bank = self._banks.get(core)
            if bank is None:
                bank = self._banks[core] = Bank(self._scratch_sticks, self._names, core)
            held = held_by(item.write, ranges)
            self._scratch[name][core] = Share(self.layouts[name], bank, self._number[name], first, held)

    def read(self, item: ExactOp, core: int, name: str, region: Region) -> Tensor:
        """Decoded sticks of a region as `core` sees them."""
        blocks = region.shape[-1]
        if name not in self.residents:
            return self._device[name].read(region.sticks, region.first, region.length, blocks)
        shares = self._scratch[name]
        if item.op.name == "LxRelayout":
            return self._over_ring(name, core, region)
        if core not in shares:
            kind = SliceError if shares else UninitialisedError
            held = f"cores {sorted(shares)} hold parts of it" if shares else "nothing wrote it"
            address = self.program.tensor(name).lx_address
            raise kind(f"this core holds nothing of it; {held}", core=core, tensor=name, address=address)
        return shares[core].read(region.sticks, region.first, region.length, blocks)

    def peek(self, core: int, name: str, region: Region) -> Tensor:
        """Decoded sticks of a region that `core` has read already, with whatever is in lanes without elements."""
        share = self._scratch[name][core] if name in self.residents else self._device[name]
        return share.peek(region.sticks)

    def _over_ring(self, name: str, core: int, region: Region) -> Tensor:
        """Sticks collected from the cores that hold them (D7.6)."""
        layout = self.layouts[name]
        cores, holder = self._holders(name)
        homes = holder[region.sticks]
        if bool((homes < 0).any()):
            stick = int(region.sticks[homes < 0][0])
            raise SliceError(f"no core holds stick {stick}", core=core, tensor=name)
        rows = torch.zeros((len(region.sticks), layout.eps), dtype=TORCH_DTYPES[layout.spec.dtype])
        for home in sorted(set(homes.tolist())):
            here = homes == home
            sticks = region.sticks[here]
            length = int(layout.lanes[sticks].min())
            rows[here] = self._scratch[name][cores[home]].read(sticks, 0, length, 1)
        return rows

    def _holders(self, name: str) -> tuple[list[int], Tensor]:
        """The cores that hold parts of a resident, and for each of its sticks the position of one of them, or -1."""
        known = self._rings.get(name)
        if known is None:
            cores = sorted(self._scratch[name])
            holder = torch.full((self.layouts[name].num_sticks,), -1, dtype=torch.int64)
            for position, core in enumerate(cores):
                holder[self._scratch[name][core].held] = position
            known = self._rings[name] = (cores, holder)
        return known

    def write(self, item: ExactOp, core: int, region: Region, values: Tensor) -> None:
        """Write the lanes [others..., length] of a result."""
        name = item.write.tensor
        share = self._scratch[name][core] if name in self.residents else self._device[name]
        yielding = {self._number[other] for other in item.yielding}
        rows = values.reshape(-1, region.length)
        share.write(region.sticks, rows, region.first, yielding)

    def pick(self, name: str, stick: Tensor, lane: Tensor) -> Tensor:
        """Single elements of a tensor in device memory (indirect access), decoded."""
        share = self._device[name]
        rows = share.pick(stick.reshape(-1), lane.reshape(-1))
        return rows.view(stick.shape)

    def end(self, item: ExactOp, dead: Sequence[str]) -> None:
        """After an operation: what died is poisoned, and arguments that share memory see each other's writes."""
        for name in dead:
            if self.program.tensor(name).kind == "temp":
                shares = self._scratch[name].values() if name in self.residents else [self._device[name]]
                for share in shares:
                    share.release()
        written = item.write.tensor
        for other in self._aliases.get(written, ()):
            share = self._device[written]
            share.layout.drain(share.rows(), self._tensors[written])
            self._device[other].fill(self.layouts[other].filled(self._tensors[other]))

    def flat(self, name: str) -> Tensor:
        """The logical elements of a tensor as flat host memory, from all cores that hold some; the rest is poison."""
        layout = self.layouts[name]
        rows = torch.full((layout.num_sticks, STICK_BYTES), 0xFF, dtype=torch.uint8).view(layout.storage)
        for share in self._scratch[name].values() if name in self.residents else [self._device[name]]:
            held = torch.arange(layout.num_sticks) if share.held is None else share.held
            rows[held] = torch.where(share.written, share.rows(), rows[held])
        flat = torch.zeros(layout.spec.storage_elements, dtype=TORCH_DTYPES[layout.spec.dtype])
        layout.drain(rows, flat)
        return flat

    def drain(self, name: str, flat: Tensor) -> None:
        """Copy a written argument back; UninitialisedError if an element was never written."""
        share = self._device[name]
        missing = (~share.written).sum(1) > share.layout.eps - share.layout.lanes
        if bool(missing.any()):
            stick = int(missing.nonzero()[0])
            raise UninitialisedError(
                f"the program leaves elements of stick {stick} unwritten", tensor=name, address=stick * STICK_BYTES
            )
        share.layout.drain(share.rows(), flat)


def _aliases(program: Program, tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """For each argument that is written or whose memory another one writes, the arguments that share its memory."""
    spans = []
    for spec in program.tensors:
        given = tensors.get(spec.name)
        if spec.kind != "temp" and given is not None and given.numel():
            start = given.data_ptr()
            spans.append((start, start + spec.storage_elements * given.element_size(), spec))
    found: dict[str, list[str]] = {}
    for start, end, spec in spans:
        for other_start, other_end, other in spans:
            written = spec.kind != "input" or other.kind != "input"
            if other is not spec and start < other_end and other_start < end and written:
                found.setdefault(spec.name, []).append(other.name)
    return found
