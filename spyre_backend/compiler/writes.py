"""Which tensors of a bundle must bring earlier content: it reads an element, or leaves one, that it never wrote."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from spyre_backend.compiler.graph import Buffer, operands
from spyre_backend.compiler.restickify_options import output_dims
from spyre_backend.program import Op

MASK_ELEMENTS = 1 << 24
"""Tensors above this size that are written in pieces count as read: loading them is right, if not needed."""


class _Coverage:
    """The elements of one tensor that have been written so far."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.full = 0 in buffer.size
        self.mask: torch.Tensor | None = None

    def write(self, op: Op) -> None:
        """Take the output of ``op`` as written."""
        kept = len(op.dims) - op.reduced if "k" not in op.attrs else len(op.dims)
        dims, strides = output_dims(op)[:kept], op.output.strides[:kept]
        count = math.prod(n for n, s in zip(dims, strides, strict=True) if s or n == 0)
        whole = math.prod(self.buffer.size)
        if self.full or count == whole:
            self.full = True
        elif whole <= MASK_ELEMENTS:
            if self.mask is None:
                reach = 1 + sum((n - 1) * s for n, s in zip(self.buffer.size, self.buffer.stride, strict=True))
                self.mask = torch.zeros(reach, dtype=torch.bool, device="cpu")
            torch.as_strided(self.mask, dims, strides, op.output.offset).fill_(True)
            self.full = bool(torch.as_strided(self.mask, self.buffer.size, self.buffer.stride).all())


def needed_content(ops: Sequence[Op], buffers: Mapping[str, Buffer]) -> frozenset[str]:
    """Tensors whose content from before ``ops`` matters: an element is read, or stays, that ``ops`` did not write."""
    coverage: dict[str, _Coverage] = {}
    needed: set[str] = set()
    for op in ops:
        for operand in operands(op):
            known = coverage.get(operand.tensor)
            if known is None or not known.full:
                needed.add(operand.tensor)
        name = op.output.tensor
        written = coverage.setdefault(name, _Coverage(buffers[name]))
        if op.name != "scatter":  # which rows it fills is only known when it runs
            written.write(op)
    return frozenset(needed | {name for name, known in coverage.items() if not known.full})
