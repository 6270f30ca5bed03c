"""A slow executor: Python loops over the iteration space, exact arithmetic, and its own DL16 rounding.

It shares no code with the executor under test and follows the definitions of the operations literally.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Any

from spyre_backend.program import Const, Op, Operand, Program

NARROW = ("float16", "bfloat16")
BLOCK = 64


def code_value(code: int) -> float:
    """Magnitude of a DL16 code without its sign, from the bit fields; 0x7FFF gets the value that it would have."""
    exponent, fraction = code >> 9, code & 0x1FF
    return 0.0 if code == 0 else (512 + fraction) / 512 * 2.0 ** (exponent - 31)


MAGNITUDES = [code_value(code) for code in range(0x8000)]


def dl16(value: float) -> float:
    """Nearest of all DL16 values, ties to the even code; NaN where there is none (infinities, overflow)."""
    magnitude = abs(value)
    if math.isnan(value) or magnitude >= MAGNITUDES[0x7FFF]:
        return math.nan
    above = bisect.bisect_right(MAGNITUDES, magnitude)
    down, up = magnitude - MAGNITUDES[above - 1], MAGNITUDES[above] - magnitude
    code = above if up < down or (up == down and above % 2 == 0) else above - 1
    return math.nan if code == 0x7FFF else math.copysign(MAGNITUDES[code], value)


def run(program: Program, tensors: dict[str, list[Any]]) -> None:
    """Execute on lists in storage order; outputs are changed in place and temps added."""
    for spec in program.tensors:
        tensors.setdefault(spec.name, [math.nan] * spec.storage_elements)
    for operation in program.ops:
        _run_op(operation, tensors)


def _run_op(op: Op, tensors: dict[str, list[Any]]) -> None:
    kept = len(op.dims) - op.reduced
    results = {}
    for outer in itertools.product(*map(range, op.dims[:kept])):
        rows = [
            [_read(item, (*outer, *inner), tensors) for item in op.inputs]
            for inner in itertools.product(*map(range, op.dims[kept:]))
        ]
        value = _reduce(op, rows) if op.reduced else POINTWISE[op.name](op, *rows[0])
        target = op.output.offset + sum(i * s for i, s in zip(outer, op.output.strides, strict=False))
        results[target] = rounded(value, op.output.dtype)
    for target, value in results.items():
        tensors[op.output.tensor][target] = value


def rounded(value: Any, dtype: str) -> Any:
    """`value` in the format of a tensor of this dtype."""
    if dtype in NARROW:
        return dl16(float(value))
    return bool(value) if dtype == "bool" else value


def _read(item: Operand | Const, index: Sequence[int], tensors: dict[str, list[Any]]) -> Any:
    if isinstance(item, Const):
        return rounded(item.value, item.dtype)
    return tensors[item.tensor][item.offset + sum(i * s for i, s in zip(index, item.strides, strict=True))]


def blocked(terms: Sequence[float]) -> float:
    """Sum in blocks of 64: each exact, rounded, then added in order with rounding after each addition."""
    total: float | None = None
    for first in range(0, len(terms), BLOCK):
        partial = dl16(math.fsum(terms[first : first + BLOCK]))
        total = partial if total is None else dl16(total + partial)
    return 0.0 if total is None else total


def _reduce(op: Op, rows: list[list[Any]]) -> Any:
    values = [row[0] for row in rows]
    inverse = dl16(1.0 / len(rows))
    if op.name == "batchmatmul":
        return blocked([a * b for a, b in rows])
    if op.name == "exx2_meansq":
        return blocked([dl16(x * x) for x in values]) * inverse
    if op.name == "prod":
        result = 1.0
        for value in values:
            result = dl16(result * value)
        return result
    return {
        "sum": lambda: blocked(values),
        "mean": lambda: blocked(values) * inverse,
        "exx2_mean": lambda: blocked(values) * inverse,
        "max": lambda: max(values),
        "min": lambda: min(values),
        "any": lambda: any(values),
        "all": lambda: all(values),
    }[op.name]()


POINTWISE: dict[str, Any] = {
    "add": lambda op, a, b: a + b,
    "sub": lambda op, a, b: a - b,
    "mul": lambda op, a, b: a * b,
    "maximum": lambda op, a, b: max(a, b),
    "minimum": lambda op, a, b: min(a, b),
    "abs": lambda op, a: abs(a),
    "neg": lambda op, a: -a,
    "relufwd": lambda op, a: max(a, 0.0),
    "floor": lambda op, a: math.floor(a),
    "ceil": lambda op, a: math.ceil(a),
    "square": lambda op, a: a * a,
    "identity": lambda op, a: a,
    "ReStickifyOpHBM": lambda op, a: a,
    "greaterthan": lambda op, a, b: a > b,
    "lesserequal": lambda op, a, b: a <= b,
    "equal": lambda op, a, b: a == b,
    "where3": lambda op, c, a, b: a if c else b,
}
