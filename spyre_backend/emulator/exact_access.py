"""How an operand's affine access walks sticks: the translation of loop variables to (stick, lane) (D2.5).

The hardware reads whole sticks.  Along the loop that runs in the stick, lanes follow one another; every other loop
moves by whole sticks.  What has no such form is refused, and so is every lane that is no element of the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from spyre_backend.emulator.exact_errors import AddressError, PaddingError, StickError
from spyre_backend.emulator.exact_layout import STICK_BYTES, DeviceLayout
from spyre_backend.program import Operand

Ranges = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Region:
    """The sticks that an access touches over ranges of its loops.

    ``sticks`` is int64 [other loops..., blocks], flattened; of each row of blocks, lanes ``first`` to
    ``first + length`` are touched.
    """

    sticks: Tensor
    shape: tuple[int, ...]
    first: int
    length: int

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole sticks."""
        return self.sticks.numel() * STICK_BYTES


class StickAccess:
    """An operand over the loops ``dims``, as sticks; checked on construction."""

    def __init__(self, layout: DeviceLayout, operand: Operand, dims: Sequence[int], *, write: bool) -> None:
        """Translate; AddressError (or its kinds) with the place of the first offence if there is no legal form."""
        self.layout = layout
        self.tensor = operand.tensor
        self.dims = tuple(dims)
        strides = operand.strides[: len(self.dims)]
        moving = [d for d, (n, s) in enumerate(zip(self.dims, strides, strict=True)) if n > 1 and s]
        self.stick = operand.stick if operand.stick in moving else None
        self.others = [d for d in moving if d != self.stick]
        self.eps = layout.eps
        self.extent = 1 if self.stick is None else self.dims[self.stick]
        step = 0 if self.stick is None else strides[self.stick]
        base = torch.tensor(operand.offset)
        _, lane, good = layout.locate(base)
        if not bool(good):
            raise self._outside(operand.offset, (0,) * len(self.dims))
        self.lane = int(lane)
        blocks = (self.lane + self.extent + self.eps - 1) // self.eps
        starts = (torch.arange(blocks) * self.eps - self.lane).clamp(min=0)
        offsets = base
        for loop in self.others:
            offsets = offsets.unsqueeze(-1) + strides[loop] * torch.arange(self.dims[loop])
        self.table = self._translate(offsets.unsqueeze(-1) + step * starts, starts)
        self._check_step(step)
        self._check_lanes(starts, write)

    def _check_step(self, step: int) -> None:
        layout = self.layout
        if self.stick is not None and (layout.stick is None or step != layout.spec.stride[layout.stick]):
            raise StickError(
                f"loop {self.stick} is said to run along the stick, but its stride {step} is not that of the stick",
                tensor=self.tensor,
            )

    def _translate(self, offsets: Tensor, starts: Tensor) -> Tensor:
        """Stick of each block; its first lane must be the one that the loops lead to."""
        stick, lane, good = self.layout.locate(offsets)
        if not bool(good.all()):
            where = self._first(~good, starts)
            raise self._outside(int(offsets[~good][0]), where)
        wanted = torch.zeros_like(starts)
        wanted[0] = self.lane
        wrong = lane != wanted
        if bool(wrong.any()):
            raise StickError(
                f"loops {list(self._first(wrong, starts))} lead to lane {int(lane[wrong][0])}, not to lane "
                f"{int(wanted.expand_as(lane)[wrong][0])}: the access splits a stick (stick loop: {self.stick})",
                tensor=self.tensor,
                address=self._byte(int(stick[wrong][0]), int(lane[wrong][0])),
            ).at(self._first(wrong, starts))
        return stick

    def _check_lanes(self, starts: Tensor, write: bool) -> None:
        """Every lane that is touched is an element, or zero padding that is only read."""
        last = torch.full_like(starts, self.eps)
        last[-1] = self.lane + self.extent - (len(starts) - 1) * self.eps
        beyond = self.layout.lanes[self.table] < last
        if self.layout.spec.padding == "zero" and not write:
            return
        if bool(beyond.any()):
            stick = int(self.table[beyond][0])
            lane = int(self.layout.lanes[stick])
            raise PaddingError(
                f"loops from {list(self._first(beyond, starts))} on reach lane {lane} of stick {stick}: padding",
                tensor=self.tensor,
                address=self._byte(stick, lane),
            ).at(self._first(beyond, starts))

    def _first(self, bad: Tensor, starts: Tensor) -> tuple[int, ...]:
        """The loop variables of the first offending block."""
        *outer, block = (int(i) for i in bad.nonzero()[0])
        place = [0] * len(self.dims)
        for loop, index in zip(self.others, outer, strict=True):
            place[loop] = index
        if self.stick is not None:
            place[self.stick] = int(starts[block])
        return tuple(place)

    def _outside(self, offset: int, place: tuple[int, ...]) -> AddressError:
        return AddressError(
            f"loops {list(place)} lead to host offset {offset}, which is no element of size "
            f"{list(self.layout.spec.size)}, strides {list(self.layout.spec.stride)}",
            tensor=self.tensor,
        ).at(place)

    def _byte(self, stick: int, lane: int) -> int:
        return stick * STICK_BYTES + lane * (STICK_BYTES // self.eps)

    def region(self, ranges: Ranges) -> Region:
        """The sticks of a rectangle of loops."""
        index = tuple(slice(ranges[d].start, ranges[d].stop) for d in self.others)
        along = range(1) if self.stick is None else ranges[self.stick]
        first = self.lane + along.start
        block = first // self.eps
        end = (self.lane + along.stop - 1) // self.eps + 1 if len(along) else block
        part = self.table[(*index, slice(block, end))]
        return Region(part.reshape(-1), tuple(part.shape), first - block * self.eps, len(along))

    def count(self, extents: Sequence[int]) -> int:
        """Sticks (at most) of a rectangle with these extents."""
        total = 1
        for loop in self.others:
            total *= extents[loop]
        if self.stick is None:
            return total
        return total * ((extents[self.stick] + self.eps - 1) // self.eps + (1 if self.lane else 0))

    def tile(self, values: Tensor, region: Region) -> Tensor:
        """Decoded sticks [n, eps] as a tile over all loops; size 1 along those that the access does not move along."""
        lanes = values.reshape(*region.shape[:-1], -1)
        return self._by_loop(lanes.narrow(-1, region.first, region.length))

    def beyond(self, values: Tensor, region: Region, count: int) -> Tensor | None:
        """The `count` lanes behind the last one of `region`, as a tile; None if they are not all in its last stick."""
        start = (region.first + region.length - 1) % self.eps + 1
        if start + count > self.eps:
            return None
        last = values.reshape(*region.shape, self.eps).select(-2, -1)
        return self._by_loop(last.narrow(-1, start, count))

    def _by_loop(self, lanes: Tensor) -> Tensor:
        order = [*self.others, *([] if self.stick is None else [self.stick])]
        if self.stick is None:
            lanes = lanes.squeeze(-1)
        lanes = lanes.permute(sorted(range(len(order)), key=lambda i: order[i]))
        shape = [1] * len(self.dims)
        for loop, extent in zip(sorted(order), lanes.shape, strict=True):
            shape[loop] = extent
        return lanes.reshape(shape)

    def untile(self, tile: Tensor, region: Region, ranges: Ranges) -> Tensor:
        """The inverse for a result: lanes [others..., length] of a tile that broadcasts to the loops' ranges."""
        order = [*self.others, *([] if self.stick is None else [self.stick])]
        tile = tile.expand([len(r) if d in order else 1 for d, r in enumerate(ranges)])
        kept = tile[tuple(slice(None) if d in order else 0 for d in range(len(ranges)))]
        lanes = kept.permute([sorted(order).index(d) for d in order])
        return lanes.unsqueeze(-1) if self.stick is None else lanes
