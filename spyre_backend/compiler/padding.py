"""Padding lanes: what a stick holds beyond the logical elements of its tensor, and which reductions must mask it.

A tensor whose stick dim is no multiple of the lanes has lanes without an element in its last sticks.  Host copies leave
garbage there (D2.3).  Operations compute every lane, so zeros stay zeros through some functions and not through others
(exp(0) is 1).  A reduction along the stick would take the lanes in; unless they already hold its identity, it carries
the attribute ``masked_lanes``: that many lanes at the end of the last stick are set to the identity first (0 for sums,
the finite ends of fp16 for max and min, D1.5), as the hardware does for the A operand of a matmul (D2.4).  Tensors
without padding lanes count as "garbage": memory that nobody wrote is not made to look written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from spyre_backend import capabilities
from spyre_backend.compiler.graph import Buffer, Graph, operands
from spyre_backend.program import Const, Op, Operand, Padding

KEEPS_ZERO = frozenset(
    {"identity", "neg", "abs", "relufwd", "sqrt", "tanh", "gelu", "silu", "floor", "ceil", "sign", "square", "powi"}
    | {"dl16tofp32", "fp32todl16", "fp8todl16", "add", "sub", "mul", "maximum", "minimum", "gather"}
)
"""Functions that are zero where all their operands are zero."""
ZERO_IS_IDENTITY = frozenset({"sum", "mean", "any", "exx2_mean", "exx2_meansq"})
"""Reductions that lanes of zeros do not change."""


def track(graph: Graph) -> None:
    """Set ``padding`` of every buffer that ``graph.ops`` write, and ``masked_lanes`` where a reduction needs it."""
    writers: dict[str, int] = {}
    for op in graph.ops:
        writers[op.output.tensor] = writers.get(op.output.tensor, 0) + 1
    ops: list[Op] = []
    for op in graph.ops:
        buffer = graph.buffers[op.output.tensor]
        alone = writers[buffer.name] == 1 and not buffer.external and _covers(op, buffer)
        buffer.padding = _result(op, graph.buffers) if alone and has_padding(buffer) else "garbage"
        lanes = _masked_lanes(op, graph.buffers)
        ops.append(replace(op, attrs={**op.attrs, "masked_lanes": lanes}) if lanes else op)
    graph.ops = ops


def has_padding(buffer: Buffer) -> bool:
    """Whether sticks of ``buffer`` have lanes without an element."""
    assert buffer.layout is not None
    stick = buffer.layout.stick_dim
    return stick is None or buffer.size[stick] % buffer.eps != 0


def _covers(op: Op, buffer: Buffer) -> bool:
    kept = len(op.dims) - op.reduced
    written = math.prod(n for n, s in zip(op.dims[:kept], op.output.strides[:kept], strict=True) if s)
    return written == math.prod(buffer.size)


def _result(op: Op, buffers: Mapping[str, Buffer]) -> Padding:
    """What ``op`` leaves in the padding lanes of its result."""
    if op.output.stick is None:
        return "garbage"
    if op.name == "ReStickifyOpHBM":
        return capabilities.current().settings.restickify_padding
    if op.reduced:
        along_stick = any(o.stick is None or o.stick >= len(op.dims) - op.reduced for o in operands(op))
        zero = op.name in ("sum", "mean", "max", "min", "any") and not along_stick
    elif op.name == "where3":
        zero = all(_zero(item, op, buffers) for item in op.inputs[1:])
        return "zero" if zero else "garbage"
    elif op.name == "clip":
        zero = float(op.attrs.get("min", 0.0)) <= 0.0 <= float(op.attrs.get("max", 0.0))
    elif op.name == "fill":
        zero = True
    elif op.name == "realdiv":
        divisor = op.inputs[1]
        zero = isinstance(divisor, Const) and float(divisor.value) != 0.0
        return "zero" if zero and _zero(op.inputs[0], op, buffers) else "garbage"
    else:
        zero = op.name in KEEPS_ZERO
    if op.name == "gather":
        return "zero" if _zero(op.inputs[0], op, buffers) else "garbage"
    return "zero" if zero and all(_zero(item, op, buffers) for item in op.inputs) else "garbage"


def _zero(item: Operand | Const, op: Op, buffers: Mapping[str, Buffer]) -> bool:
    """Whether the padding lanes of the result see zeros of this operand: not if it is constant along the stick."""
    if isinstance(item, Const):
        return item.value == 0
    buffer = buffers[item.tensor]
    if item.stick is None or item.stick != op.output.stick or not _ends_with(item, op, buffer):
        return False
    return not has_padding(buffer) or buffer.padding == "zero"


def _ends_with(item: Operand, op: Op, buffer: Buffer) -> bool:
    """Whether the access reaches the last element of its tensor's stick dim: beyond it there is only padding."""
    assert buffer.layout is not None
    stick = buffer.layout.stick_dim
    assert stick is not None
    assert item.stick is not None
    step = max(buffer.stride[stick], 1)
    return (item.offset // step) % max(buffer.size[stick], 1) + op.dims[item.stick] >= buffer.size[stick]


def _masked_lanes(op: Op, buffers: Mapping[str, Buffer]) -> int:
    """Lanes that a reduction along the stick has to set to its identity; 0 if there are none or they hold it."""
    kept = len(op.dims) - op.reduced
    if not op.reduced:
        return 0
    operand = next(operands(op), None)
    if operand is None or operand.stick is None or operand.stick < kept:
        return 0
    buffer = buffers[operand.tensor]
    lanes = -op.dims[operand.stick] % buffer.eps
    harmless = op.name in ZERO_IS_IDENTITY and buffer.padding == "zero" and _ends_with(operand, op, buffer)
    return 0 if harmless else lanes
