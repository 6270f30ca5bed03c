"""The compiler's own graph between Inductor's IR and the program: device operations over buffers, in order.

Operations are the program's :class:`~spyre_backend.program.Op`; buffers still lack a stick layout until stage 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from spyre_backend.program import Op, Operand, Padding, StickLayout

EPS_BY_DTYPE = {
    "float16": 64,
    "bfloat16": 64,
    "bool": 64,
    "float32": 32,
    "int32": 32,
    "int64": 32,
    "int8": 128,
    "float8_e4m3fn": 128,
}
"""Elements in a stick of 128 bytes, by host dtype (fixed constants block and D1.6: int64 is held as int32)."""

DEVICE_ITEMSIZE = {name: 128 // eps for name, eps in EPS_BY_DTYPE.items()}


@dataclass(slots=True)
class Buffer:
    """A tensor in device memory: ``size`` and ``stride`` in elements as the host sees them.

    ``external`` buffers are graph inputs or results of host operators: their layout is the default one, not ours to
    choose.  ``padding`` says what the lanes of a stick beyond its elements hold.
    """

    name: str
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    external: bool
    layout: StickLayout | None = None
    padding: Padding = "garbage"

    @property
    def eps(self) -> int:
        """Elements in one stick."""
        return EPS_BY_DTYPE[self.dtype]


@dataclass(slots=True)
class Graph:
    """Operations in execution order and the buffers they use; ``fresh`` names new temporaries."""

    name: str
    buffers: dict[str, Buffer] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    counter: int = 0

    def fresh(self, dtype: str, size: Iterable[int], *, stem: str = "tmp") -> Buffer:
        """A new contiguous temporary of ``size``."""
        extent = tuple(size)
        name = f"{stem}{self.counter}"
        self.counter += 1
        buffer = Buffer(name=name, dtype=dtype, size=extent, stride=contiguous_strides(extent), external=False)
        self.buffers[name] = buffer
        return buffer

    def describe(self) -> str:
        """One line for each operation, as ``explain`` shows them."""
        return "\n".join(describe_op(op) for op in self.ops)


def contiguous_strides(size: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements; size-1 and empty dims count as one."""
    strides: list[int] = []
    step = 1
    for extent in reversed(size):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def operands(op: Op) -> Iterator[Operand]:
    """The tensor inputs of ``op`` (constants left out)."""
    return (item for item in op.inputs if isinstance(item, Operand))


def describe_op(op: Op) -> str:
    """``sum[8,64|384] tmp0(...) <- buf1(...)  # aten.sum at encoder.layer.0``."""
    kept = len(op.dims) - op.reduced
    space = ",".join(map(str, op.dims[:kept])) + ("|" + ",".join(map(str, op.dims[kept:])) if op.reduced else "")
    inputs = ", ".join(_describe_input(item) for item in op.inputs)
    attrs = f" {op.attrs}" if op.attrs else ""
    split = f" split={list(op.split)}" if op.split else ""
    place = " at ".join(part for part in (op.origin.aten, op.origin.module_path) if part)
    return f"{op.name}[{space}] {_describe_input(op.output)} <- {inputs}{attrs}{split}" + (
        f"  # {place}" if place else ""
    )


def _describe_input(item: object) -> str:
    if not isinstance(item, Operand):
        return repr(getattr(item, "value", item))
    terms = "+".join(f"{s}*d{i}" for i, s in enumerate(item.strides) if s) or "0"
    offset = f"+{item.offset}" if item.offset else ""
    stick = f"; stick d{item.stick}" if item.stick is not None else ""
    return f"{item.tensor}({terms}{offset}{stick}: {item.dtype})"
