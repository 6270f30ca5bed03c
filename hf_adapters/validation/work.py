"""How much was multiplied on the device: who computes elsewhere, or not at all, multiplies less than stock.

Rewrites that are right keep the matrix products of the stock model or enlarge them (padding), so fewer
multiplications mean that work was skipped or done where no device program sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

MATMUL = "batchmatmul"
"""Device function of a matrix product, and the prefix of its low-precision forms (D4.7)."""

LEAST_SHARE = 0.9
"""Share of the stock multiplications that a candidate has to do on the device."""


@dataclass(slots=True)
class Work:
    """Multiplications done so far."""

    multiplications: int = 0


@contextmanager
def device_work() -> Iterator[Work]:
    """Count the multiplications of the matrix products that are launched on the device inside the block."""
    from spyre_backend.runtime.launch import LoadedProgram

    done = Work()
    sizes: dict[str, int] = {}
    stock = LoadedProgram.launch

    def launch(self: LoadedProgram, *args: Any) -> None:
        stock(self, *args)
        if self.digest not in sizes:
            sizes[self.digest] = sum(math.prod(op.dims) for op in self.program.ops if op.name.startswith(MATMUL))
        done.multiplications += sizes[self.digest]

    LoadedProgram.launch = launch  # type: ignore[method-assign]
    try:
        yield done
    finally:
        LoadedProgram.launch = stock  # type: ignore[method-assign]
