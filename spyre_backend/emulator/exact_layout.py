"""Where each element of a tensor lies in device memory: sticks and lanes (D2.1, D2.2), and the formats in them (D1.6).

Memory is counted in sticks of 128 bytes.  A stick holds ``eps`` lanes; those beyond the logical elements are padding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from spyre_backend.emulator.context import DL16_DTYPES, TORCH_DTYPES
from spyre_backend.emulator.exact_errors import AddressError
from spyre_backend.emulator.numerics import dl16_decode, dl16_encode
from spyre_backend.program import TensorSpec

STICK_BYTES = 128
POISON = 0xFF
"""Byte that fills memory without content: it reads as NaN, -1 or True."""

_STORAGE = {
    "SEN169_FP16": torch.int16,
    "IEEE_FP32": torch.float32,
    "IEEE_INT32": torch.int32,
    "SENINT8": torch.int8,
    "SEN143_FP8": torch.float8_e4m3fn,
}


@dataclass(frozen=True, slots=True)
class _Term:
    """One device dim of a host dim: the host index counts ``step`` for each of its ``extent`` coordinates.

    ``sticks`` is the distance in device memory between two coordinates; 0 marks the lanes.
    """

    step: int
    extent: int
    sticks: int


class DeviceLayout:
    """The stick layout of one tensor, checked: every logical element has one lane of its own."""

    def __init__(self, spec: TensorSpec) -> None:
        """Read ``spec.layout``; AddressError if it does not address exactly the elements of ``spec.size``."""
        self.spec = spec
        self.sizes = spec.layout.device_size
        self.steps = spec.layout.stride_map
        self._check_form()
        self.eps = self.sizes[-1]
        self.num_sticks = math.prod(self.sizes[:-1])
        self.storage = _storage(spec)
        self.empty = 0 in spec.size
        self._real = sorted(
            (d for d, n in enumerate(spec.size) if n > 1 and spec.stride[d] > 0), key=lambda d: -spec.stride[d]
        )
        self._terms: dict[int, list[_Term]] = {d: [] for d in self._real}
        if not self.empty:
            self._assign()
        self.stick = next((d for d in self._real if any(t.sticks == 0 for t in self._terms[d])), None)
        named = spec.layout.stick_dim
        if named in self._real and named != self.stick:
            raise self._wrong(f"stick_dim is {named}, but host dim {self.stick} runs along the stick")
        self.lanes = self._count_lanes()

    def _check_form(self) -> None:
        spec = self.spec
        if len(self.sizes) != len(self.steps) or not self.sizes or len(spec.size) != len(spec.stride):
            raise self._wrong("extents, strides and size do not belong together")
        itemsize, odd = divmod(STICK_BYTES, self.sizes[-1] or STICK_BYTES + 1)
        if odd or itemsize != _storage(spec).itemsize:
            raise self._wrong(f"a stick of {self.sizes[-1]} elements does not hold {spec.layout.device_dtype}")

    def _wrong(self, detail: str) -> AddressError:
        return AddressError(
            f"layout {list(self.sizes)} with stride_map {list(self.steps)} does not address a tensor of size "
            f"{list(self.spec.size)} and strides {list(self.spec.stride)}: {detail}",
            tensor=self.spec.name,
        )

    def _assign(self) -> None:
        """Find the host dim of each device dim, and check that they number its elements like digits."""
        sticks = [math.prod(self.sizes[i + 1 : -1]) for i in range(len(self.sizes) - 1)]
        for extent, step, distance in zip(self.sizes[:-1], self.steps[:-1], sticks, strict=True):
            if extent > 1 and step > 0:
                self._terms[self._host_dim(step)].append(_Term(step, extent, distance))
        if self.steps[-1] > 0:
            lane_dim = self._host_dim(self.steps[-1])
            self._terms[lane_dim].append(_Term(self.steps[-1], self.sizes[-1], 0))
        for dim in self._real:
            stride = self.spec.stride[dim]
            terms = sorted(
                (_Term(t.step // stride, t.extent, t.sticks) for t in self._terms[dim]), key=lambda t: t.step
            )
            self._terms[dim] = terms
            reach = 1
            for term in terms:
                if term.step != reach:
                    raise self._wrong(f"host dim {dim} jumps from {reach} to {term.step} elements")
                reach *= term.extent
            if reach < self.spec.size[dim]:
                raise self._wrong(f"host dim {dim} reaches {reach} of {self.spec.size[dim]} elements")

    def _host_dim(self, step: int) -> int:
        for dim in self._real:
            stride = self.spec.stride[dim]
            if step % stride == 0 and step // stride < self.spec.size[dim]:
                return dim
        raise self._wrong(f"no host dim has stride {step}")

    def _count_lanes(self) -> Tensor:
        """Int64 [num_sticks]: how many lanes of each stick, from the first on, are logical elements."""
        outer = self.sizes[:-1]
        lanes = torch.full(outer, 0 if self.empty else 1 if self.stick is None else self.eps, dtype=torch.int64)
        if self.empty:
            return lanes.reshape(-1)
        first = {dim: torch.zeros((1,) * len(outer), dtype=torch.int64) for dim in self._real}
        for position, (extent, step) in enumerate(zip(outer, self.steps[:-1], strict=True)):
            shape = [extent if p == position else 1 for p in range(len(outer))]
            index = torch.arange(extent).reshape(shape)
            if extent > 1 and step > 0:
                dim = self._host_dim(step)
                first[dim] = first[dim] + index * (step // self.spec.stride[dim])
            elif extent > 1:
                lanes = lanes.where(index == 0, 0)
        for dim, start in first.items():
            left = self.spec.size[dim] - start
            lanes = lanes.minimum(left.clamp(0, self.eps)) if dim == self.stick else lanes.where(left > 0, 0)
        return lanes.reshape(-1).contiguous()

    def locate(self, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(stick, lane, whether it is an element) of each host offset in elements; int64 and bool, same shape."""
        rest = offsets
        stick, lane = torch.zeros_like(offsets), torch.zeros_like(offsets)
        good = offsets >= 0
        for dim in self._real:
            stride, size = self.spec.stride[dim], self.spec.size[dim]
            index = rest if stride == 1 else torch.div(rest, stride, rounding_mode="floor")
            rest = rest - index * stride
            good = good & (index < size)
            for term in self._terms[dim]:
                digit = index if term.step == 1 else torch.div(index, term.step, rounding_mode="floor")
                if term.step * term.extent < size:
                    digit = digit % term.extent
                if term.sticks:
                    stick = stick + digit * term.sticks
                else:
                    lane = digit
        return stick, lane, good & (rest == 0)

    def filled(self, flat: Tensor) -> Tensor:
        """What the host writes to the device: flat host memory as sticks [num_sticks, eps], padding filled."""
        rows = self.blank(self.num_sticks)
        self._exchange(rows, self.encode(flat), to_device=True)
        return rows

    def blank(self, count: int) -> Tensor:
        """``count`` sticks without content; zeros if the padding of this tensor is."""
        byte = 0 if self.spec.padding == "zero" else POISON
        return torch.full((count, STICK_BYTES), byte, dtype=torch.uint8).view(self.storage)

    def drain(self, rows: Tensor, flat: Tensor) -> None:
        """Copy the logical elements of sticks [num_sticks, eps] into the flat host memory `flat`, decoded."""
        self._exchange(self.decode(rows), flat, to_device=False)

    def _exchange(self, rows: Tensor, flat: Tensor, *, to_device: bool) -> None:
        """Copy between sticks and flat host memory: whole sticks first, then what is in the partly filled ones."""
        if self.empty:
            return
        offsets = self._host_offsets()
        host = flat.as_strided((self.spec.storage_elements,), (1,), flat.storage_offset())
        for count in sorted(set(self.lanes.tolist())):
            if not count:
                continue
            which = (self.lanes == count).nonzero().squeeze(1)
            step = 0 if self.stick is None else self.spec.stride[self.stick]
            places = offsets[which].unsqueeze(1) + step * torch.arange(count)
            if to_device:
                rows[which, :count] = host[places]
            else:
                host[places] = rows[which, :count]

    def _host_offsets(self) -> Tensor:
        """Int64 [num_sticks]: the host offset of lane 0 of each stick (meaningless where it has no logical lane)."""
        offsets = torch.zeros((1,) * max(len(self.sizes) - 1, 1), dtype=torch.int64)
        for position, (extent, step) in enumerate(zip(self.sizes[:-1], self.steps[:-1], strict=True)):
            if extent > 1:
                shape = [extent if p == position else 1 for p in range(len(self.sizes) - 1)]
                offsets = offsets + torch.arange(extent).reshape(shape) * max(step, 0)
        return offsets.expand(self.sizes[:-1]).reshape(-1)

    def encode(self, values: Tensor) -> Tensor:
        """Working values in the device's format; DL16 codes pass through."""
        if self.storage is torch.int16:
            return values if values.dtype is torch.int16 else dl16_encode(values.to(torch.float32))
        return values.to(self.storage)

    def decode(self, rows: Tensor) -> Tensor:
        """Working values (``context.TORCH_DTYPES``) of sticks in the device's format."""
        values = dl16_decode(rows) if self.storage is torch.int16 else rows
        wanted = TORCH_DTYPES[self.spec.dtype]
        if wanted is torch.bool:
            return values != 0
        return values if values.dtype is wanted else values.to(wanted)


def _storage(spec: TensorSpec) -> torch.dtype:
    storage = _STORAGE.get(spec.layout.device_dtype)
    if storage is None or spec.dtype not in TORCH_DTYPES or (spec.dtype in DL16_DTYPES and storage is not torch.int16):
        raise AddressError(f"{spec.dtype} is not held as {spec.layout.device_dtype}", tensor=spec.name)
    return storage
