"""Memory that knows what lives in it: device memory, and one scratchpad for each core (D1.2, D4.5).

A :class:`Bank` is bytes in sticks of 128 with the owner of each; a :class:`Share` is what one tensor has in one bank.
Bytes without content are poisoned, so that a value read from where nothing lives is wrong even if no check saw it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from spyre_backend.emulator.exact_errors import LifetimeError, SliceError, UninitialisedError
from spyre_backend.emulator.exact_layout import POISON, STICK_BYTES, DeviceLayout

_NOBODY = -1


class Bank:
    """Sticks of memory and the owner of each.

    ``core`` is the scratchpad's core, None for device memory.  An owner is a position in ``names``.
    """

    def __init__(self, num_sticks: int, names: Sequence[str], core: int | None = None) -> None:
        self.names = names
        self.core = core
        self.bytes = torch.full((num_sticks, STICK_BYTES), POISON, dtype=torch.uint8)
        self.owner = torch.full((num_sticks,), _NOBODY, dtype=torch.int32)

    def rows(self, storage: torch.dtype) -> Tensor:
        """All sticks as [num_sticks, eps] of a device format."""
        return self.bytes.view(storage)


class Share:
    """The sticks that one tensor has in one bank: position ``i`` of them lies at stick ``first + i`` of the bank.

    ``held`` are the tensor's own stick addresses, ascending; None if all of them are here in order, as in device
    memory.  A stick's lanes count as written one by one.
    """

    def __init__(
        self,
        layout: DeviceLayout,
        bank: Bank,
        owner: int,
        first: int = 0,
        held: Tensor | None = None,
    ) -> None:
        self.layout = layout
        self.bank = bank
        self.owner = owner
        self.first = first
        self.held = held
        self.count = layout.num_sticks if held is None else len(held)
        self.written = torch.zeros((self.count, layout.eps), dtype=torch.bool)
        self._rows = bank.rows(layout.storage)
        self._position: Tensor | None = None
        if held is not None:
            self._position = torch.full((layout.num_sticks,), -1, dtype=torch.int64)
            self._position[held] = torch.arange(self.count)

    @property
    def tensor(self) -> str:
        """Name of the tensor."""
        return self.layout.spec.name

    def address(self, position: int) -> int:
        """Byte address in the bank of stick number ``position`` of this share."""
        return (self.first + position) * STICK_BYTES

    def positions(self, sticks: Tensor) -> Tensor:
        """Where the tensor's sticks lie in this share; SliceError if one is not here."""
        if self._position is None:
            return sticks
        found = self._position[sticks]
        missing = found < 0
        if bool(missing.any()):
            stick = int(sticks[missing][0])
            raise SliceError(
                f"stick {stick} is accessed, but this core holds only sticks {_span(self.held)}",
                core=self.bank.core,
                tensor=self.tensor,
                address=self.address(0),
            )
        return found

    def fill(self, rows: Tensor) -> None:
        """Put whole content, as a copy from the host does."""
        span = slice(self.first, self.first + self.count)
        self._rows[span] = rows
        self.bank.owner[span] = self.owner
        self.written[:] = torch.arange(self.layout.eps) < self.layout.lanes.unsqueeze(1)

    def read(self, sticks: Tensor, first: int, length: int, blocks: int) -> Tensor:
        """Decoded sticks [n, eps]; lanes ``first`` to ``first + length`` of each row of ``blocks`` must be written."""
        places = self.positions(sticks)
        mine = self.bank.owner[places + self.first] == self.owner
        if not bool(mine.all()):
            raise self._gone(int(places[~mine][0]))
        lanes = self.written[places].view(-1, blocks * self.layout.eps).narrow(-1, first, length)
        if not bool(lanes.all()):
            self._check_written(places, first, length, blocks)
        return self.layout.decode(self._rows[places + self.first])

    def peek(self, sticks: Tensor) -> Tensor:
        """Decoded sticks [n, eps] as they are, whether written or not: what the lanes of the hardware see."""
        return self.layout.decode(self._rows[self.positions(sticks) + self.first])

    def rows(self) -> Tensor:
        """The sticks as they are, in the device's format."""
        return self._rows[self.first : self.first + self.count]

    def pick(self, sticks: Tensor, lanes: Tensor) -> Tensor:
        """Decoded single elements, one for each pair of stick and lane."""
        places = self.positions(sticks)
        mine = self.bank.owner[places + self.first] == self.owner
        if not bool(mine.all()):
            raise self._gone(int(places[~mine][0]))
        known = self.written[places, lanes]
        if not bool(known.all()):
            place = int(places[~known][0])
            raise UninitialisedError(
                "it is read before anything wrote it", tensor=self.tensor, address=self.address(place)
            )
        return self.layout.decode(self._rows[places + self.first, lanes])

    def _gone(self, place: int) -> LifetimeError | UninitialisedError:
        never = not bool(self.written[place].any())
        kind = UninitialisedError if never else LifetimeError
        return kind(
            "these bytes are read before anything wrote them"
            if never
            else "the value is gone: its bytes were given to another one while it was still needed",
            core=self.bank.core,
            tensor=self.tensor,
            address=self.address(place),
        )

    def _check_written(self, places: Tensor, first: int, length: int, blocks: int) -> None:
        """Report the first logical lane that is read unwritten; zero padding is written with its stick."""
        eps = self.layout.eps
        sticks = places if self.held is None else self.held[places]
        padding = torch.arange(eps) >= self.layout.lanes[sticks].unsqueeze(1)
        known = (self.written[places] | padding).view(-1, blocks * eps).narrow(-1, first, length)
        if bool(known.all()):
            return
        row, lane = (int(i) for i in (~known).nonzero()[0])
        block, lane = divmod(lane + first, eps)
        place, stick = (int(t.view(-1, blocks)[row, block]) for t in (places, sticks))
        if self.bank.core is not None and bool(self.written[place].any()):
            raise SliceError(
                f"lane {lane} of stick {stick} was written by another core",
                core=self.bank.core,
                tensor=self.tensor,
                address=self.address(place),
            )
        raise UninitialisedError(
            f"lane {lane} of stick {stick} is read before anything wrote it",
            core=self.bank.core,
            tensor=self.tensor,
            address=self.address(place),
        )

    def write(self, sticks: Tensor, values: Tensor, first: int, yielding: Collection[int]) -> None:
        """Write lanes ``first`` to ``first + length`` of each row of blocks, and whole sticks of padding with them.

        Args:
            sticks: int64 [rows * blocks], the tensor's own stick addresses.
            values: [rows, length] working values.
            first: lane of the first block where the values begin.
            yielding: owners whose bytes may be taken: inputs that this operation is the last to read.
        """
        layout = self.layout
        places = self.positions(sticks)
        self._claim(places, yielding)
        rows, length = values.shape
        blocks = len(sticks) // max(rows, 1)
        wide = layout.blank(len(sticks)).view(rows, blocks * layout.eps)
        wide[:, first : first + length] = layout.encode(values)
        done = torch.zeros((blocks * layout.eps,), dtype=torch.bool)
        done[first : first + length] = True
        done = done.view(blocks, layout.eps).expand(rows, blocks, layout.eps).reshape(-1, layout.eps)
        padding = torch.arange(layout.eps) >= layout.lanes[sticks].unsqueeze(1)
        content = wide.view(-1, layout.eps)
        old = self._rows[places + self.first]
        self._rows[places + self.first] = torch.where(done | padding, content, old)
        self.written[places] |= done

    def _claim(self, places: Tensor, yielding: Collection[int]) -> None:
        """Take the sticks over; LifetimeError if another live value is there."""
        lines = places + self.first
        owners = self.bank.owner[lines]
        foreign = owners != self.owner
        if not bool(foreign.any()):
            return
        for other in sorted(set(owners[foreign].tolist())):
            if other != _NOBODY and other not in yielding:
                place = int(places[owners == other][0])
                raise LifetimeError(
                    f"it would overwrite {self.bank.names[other]!r}, which is still needed",
                    core=self.bank.core,
                    tensor=self.tensor,
                    address=self.address(place),
                )
        self.bank.owner[lines] = self.owner
        self.bank.bytes[lines[foreign]] = POISON
        self.written[places[foreign]] = False

    def release(self) -> None:
        """The tensor is dead: poison what it still has."""
        span = slice(self.first, self.first + self.count)
        mine = self.bank.owner[span] == self.owner
        self.bank.bytes[span][mine] = POISON
        self.bank.owner[span][mine] = _NOBODY


def _span(held: Tensor | None) -> str:
    if held is None or not len(held):
        return "none"
    return f"{int(held[0])}..{int(held[-1])} ({len(held)})"
