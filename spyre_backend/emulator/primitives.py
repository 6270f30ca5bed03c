"""The executor's table of device operations: one function for each name that a program may contain (D4.7)."""

from __future__ import annotations

from spyre_backend.emulator.context import ExecutionError, Primitive
from spyre_backend.emulator.indexing import gather, topkindex, topkvalue
from spyre_backend.emulator.matmul import batchmatmul
from spyre_backend.emulator.pointwise import COPIES, EXACT, POINTWISE
from spyre_backend.emulator.reductions import REDUCTIONS

PRIMITIVES: dict[str, Primitive] = {
    **POINTWISE,
    **REDUCTIONS,
    "batchmatmul": batchmatmul,
    "gather": gather,
    "topkvalue": topkvalue,
    "topkindex": topkindex,
}

SIXTEEN_BIT_ONLY = frozenset({"gelu", "tanh", "log", "softplus"})
"""Special functions that the device has for 16-bit floats only (D1.6); matmul checks for itself."""

TOPK = frozenset({"topkvalue", "topkindex"})

__all__ = ["COPIES", "EXACT", "PRIMITIVES", "SIXTEEN_BIT_ONLY", "TOPK", "lookup"]


def lookup(name: str) -> Primitive:
    """The function of device operation `name`; ExecutionError naming it if the executor has none."""
    try:
        return PRIMITIVES[name]
    except KeyError:
        raise ExecutionError("the executor knows no device operation of this name") from None
