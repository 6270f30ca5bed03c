"""What one operation asks of the cores and of device memory: its kind, then its compute and memory time (D7.2-D7.6)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from spyre_backend.emulator import clock_constants as k
from spyre_backend.emulator import clock_rates as rates
from spyre_backend.emulator.clock_traffic import STICK_BYTES, Traffic
from spyre_backend.program import Op, Operand, Program, TensorSpec
from spyre_backend.slices import cores_used

Kind = Literal["pointwise", "broadcast", "reduction", "matmul", "bmm", "transport", "relayout"]
Scaling = Literal["cap", "table"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Time one operation needs, in ns, before the bundle overlaps compute with memory.

    ``turnaround`` says that its bytes count for the read/write turn-around of D7.1; what was measured for a form of
    operation (D7.2 to D7.4) contains it already.
    """

    kind: Kind
    cores: int
    compute_ns: float
    memory_ns: float
    relayout_ns: float = 0.0
    turnaround: bool = True
    scale: float = 1.0
    macs: float = 0.0


def is_restickify(op: Op) -> bool:
    """A transpose of sticks: ReStickifyOpHBM, or a copy whose two sides run along different dims (D2.6)."""
    if op.name == "ReStickifyOpHBM":
        return True
    source = op.inputs[0] if op.inputs else None
    if op.name != "identity" or not isinstance(source, Operand):
        return False
    return source.stick is not None and op.output.stick is not None and source.stick != op.output.stick


def cost(program: Program, index: int, traffic: Traffic, scaling: Scaling) -> Cost:
    """The cost of operation `index`.

    Args:
        program: the bundle it belongs to.
        index: its position.
        traffic: its bytes as :func:`clock_traffic.count` charges them.
        scaling: how few cores bound a plain operation: "cap" (40 GB/s each) or "table" (D7.4's g).
    """
    op = program.ops[index]
    cores = max(cores_used(op), 1)
    if op.name == "LxRelayout":
        return Cost("relayout", cores, 0.0, 0.0, relayout_cost(program, index))
    if op.name.startswith("batchmatmul"):
        return _matmul(program, op, traffic, cores)
    if op.reduced:
        return _reduction(program, op, traffic, cores)
    if is_restickify(op):
        half = max(traffic.read, traffic.written)
        moved = rates.restickify_ns(half, restickify_run(program, op), cores) if half else 0.0
        return Cost("transport", cores, 0.0, moved, turnaround=False)
    if op.name == "scatter":
        rate = min(k.ROW_STORE * cores, k.HBM_BANDWIDTH)
        return Cost("transport", cores, 0.0, traffic.charged / rate, turnaround=False)
    return _elementwise(program, op, traffic, cores, scaling)


def _elements(op: Op) -> int:
    return math.prod(op.dims)


def _elementwise(program: Program, op: Op, traffic: Traffic, cores: int, scaling: Scaling) -> Cost:
    slow = k.CYCLE_SLOW if op.name in rates.TRANSCENDENTAL else 1
    compute = slow * _elements(op) / cores / (_lanes(program, op) * k.CLOCK_GHZ)
    scale = rates.core_scaling(cores) if scaling == "table" else rates.capped_scaling(cores)
    moved = _transport(program, op)
    if moved is not None:
        return Cost("transport", cores, compute, traffic.charged / (moved * scale), turnaround=False)
    surface = _broadcast(op) if traffic.read and traffic.written else None
    if surface is not None:
        return Cost("broadcast", cores, compute, traffic.charged / (surface * scale), turnaround=False)
    return Cost("pointwise", cores, compute, traffic.charged / (k.HBM_BANDWIDTH * scale), scale=scale)


def _lanes(program: Program, op: Op) -> int:
    """Elements a cycle: a stick of the widest operand, as a 32-bit number fills two of the 64 lanes (D1.3)."""
    operands = [o for o in (*op.inputs, op.output) if isinstance(o, Operand)]
    return min(k.LANES, *(program.tensor(o.tensor).layout.device_size[-1] for o in operands))


def _broadcast(op: Op) -> float | None:
    """Bandwidth of D7.2 when a tensor operand is constant along a dim of the iteration space and another is not.

    It holds for an operation that streams device memory in and out; inside a bundle that keeps its temporaries in the
    scratchpads the plain rate of D7.1 does, as its softmax check shows.
    """
    tensors = [o for o in op.inputs if isinstance(o, Operand)]
    wide = [d for d, n in enumerate(op.dims) if n > 1]
    if op.name == "gather" or len(tensors) < 2 or not wide:
        return None
    if not any(all(o.strides[d] for d in wide) for o in tensors):
        return None
    spread = [o for o in tensors if not all(o.strides[d] for d in wide)]
    if not spread:
        return None
    last = wide[-1]
    rows = math.prod(op.dims[d] for d in wide[:-1])
    return rates.broadcast_bandwidth(rows, op.dims[last], row_vector=any(o.strides[last] for o in spread))


def _transport(program: Program, op: Op) -> float | None:
    """Bandwidth of D7.3 of a copy in device memory that is a piece of a cat or a transpose of outer dims."""
    source = op.inputs[0] if op.inputs else None
    if op.name != "identity" or not isinstance(source, Operand):
        return None
    target = program.tensor(op.output.tensor)
    if target.lx_address is not None or program.tensor(source.tensor).lx_address is not None or not target.size:
        return None
    rows, columns = math.prod(target.size[:-1]), target.size[-1]
    if _elements(op) < math.prod(target.size):
        return rates.cat_bandwidth(rows, columns, along_columns=op.dims[-1] < columns)
    order = [(s, d) for d, (s, n) in enumerate(zip(source.strides, op.dims, strict=True)) if s and n > 1]
    written = [(s, d) for d, (s, n) in enumerate(zip(op.output.strides, op.dims, strict=True)) if s and n > 1]
    if [d for _, d in sorted(order)] == [d for _, d in sorted(written)]:
        return None
    outermost = max(written)[1]
    return rates.transpose_bandwidth(op.dims[outermost], rows, columns)


def _reduction(program: Program, op: Op, traffic: Traffic, cores: int) -> Cost:
    """Alone, a reduction runs at its measured bandwidth; in a bundle it adds compute and its bytes are plain (D7.4)."""
    scale = rates.core_scaling(cores)
    if len(program.ops) > 1:
        compute = 0.0 if _second_of_exx2(program, op) else _elements(op) / cores / k.FUSED_REDUCTION
        return Cost("reduction", cores, compute, traffic.charged / (k.HBM_BANDWIDTH * scale), scale=scale)
    kept = len(op.dims) - op.reduced
    inner = any(isinstance(o, Operand) and o.stick is not None and o.stick >= kept for o in op.inputs)
    rate = rates.inner_reduction_bandwidth(math.prod(op.dims[:kept])) if inner else k.OUTER_REDUCTION
    return Cost("reduction", cores, 0.0, traffic.charged / (rate * scale), turnaround=False)


def _second_of_exx2(program: Program, op: Op) -> bool:
    """One device function, exx2, gives mean and mean of squares in one pass (D2.4); a program has an op for each."""
    return op.name == "exx2_meansq" and any(o.name == "exx2_mean" and o.inputs == op.inputs for o in program.ops)


def _matmul(program: Program, op: Op, traffic: Traffic, cores: int) -> Cost:
    first, second = (o for o in op.inputs if isinstance(o, Operand))
    rows_dim, columns_dim = len(op.dims) - 3, len(op.dims) - 2
    split = op.split or (1,) * len(op.dims)
    batch = math.prod(op.dims[:rows_dim])
    shared = batch == 1 or not any(s for s, n in zip(second.strides[:rows_dim], op.dims, strict=False) if n > 1)
    between = _between_rows_and_stick(program.tensor(first.tensor), first, rows_dim, op)
    peak = rates.matmul_peak(between, cores, rows_by_stick=between == 1, shared=shared)
    block = (op.dims[rows_dim] / split[rows_dim], op.dims[columns_dim] / split[columns_dim])
    per_core = math.prod(op.dims[:rows_dim]) / math.prod(split[:rows_dim])
    area = (block[0] * max(per_core, 1.0), block[1]) if shared else block
    macs = float(_elements(op))
    compute = rates.matmul_ns(macs, cores, peak, area, math.prod(split[:rows_dim]), op.dims[rows_dim])
    scale = rates.core_scaling(cores)
    memory = traffic.charged / (k.HBM_BANDWIDTH * scale)
    return Cost("matmul" if batch == 1 else "bmm", cores, compute, memory, scale=scale, macs=macs)


def _between_rows_and_stick(spec: TensorSpec, operand: Operand, rows_dim: int, op: Op) -> int:
    """Extent of the device dim between the rows of a matmul operand and its stick; 1 if the rows are next to it (D7.5).

    The default layout of a batched tensor puts its dim 0 there (D2.2), so that rows of one batch are not neighbours.
    """
    sizes, strides = spec.layout.device_size[:-1], spec.layout.stride_map[:-1]
    if op.dims[rows_dim] == 1 or not sizes or sizes[-1] <= 1 or strides[-1] in (-1, operand.strides[rows_dim]):
        return 1
    return sizes[-1]


def restickify_run(program: Program, op: Op) -> int:
    """Contiguous bytes that a block of 64 by 64 elements has on the worse of the two sides.

    A side whose device dim next to the stick is the other side's stick dim holds the block's sticks one after another;
    otherwise each stick is a run of its own (an inference from the layouts: D7.3 gives the formula, not the runs).
    """
    source = next(o for o in op.inputs if isinstance(o, Operand))
    runs = []
    for here, other in ((source, op.output), (op.output, source)):
        layout = program.tensor(here.tensor).layout
        across = here.strides[other.stick] if other.stick is not None else None
        beside = [(n, s) for n, s in zip(layout.device_size[:-1], layout.stride_map[:-1], strict=True)][-1:]
        together = min(beside[0][0], layout.device_size[-1]) if beside and beside[0][1] == across else 1
        runs.append(together * STICK_BYTES)
    return min(runs)


def relayout_cost(program: Program, index: int) -> float:
    """Time of a relayout from the division of whoever wrote its input to its own (D7.6).

    The ways are the cores that one core sends to, or receives from where that is more; copies count as receivers.
    """
    op = program.ops[index]
    source = next(o for o in op.inputs if isinstance(o, Operand))
    spec = program.tensor(source.tensor)
    writer = next((o for o in reversed(program.ops[:index]) if o.output.tensor == source.tensor), None)
    before = _pieces(writer, writer.output) if writer is not None else {}
    after = _pieces(op, source)
    pairs = [(before.get(stride, 1), after.get(stride, 1)) for stride in {*before, *after}]
    copies = math.prod(n for s, n in zip(source.strides, op.split, strict=False) if not s)
    ways = max(math.prod(math.ceil(b / a) for b, a in pairs), copies * math.prod(math.ceil(a / b) for b, a in pairs))
    per_core = spec.layout.num_bytes / math.prod(before.values())
    return rates.relayout_ns(per_core, ways, _runs(spec, before, after, per_core))


def _pieces(op: Op, operand: Operand) -> dict[int, int]:
    split = op.split or (1,) * len(op.dims)
    return {s: n for s, n in zip(operand.strides, split, strict=True) if s and n > 1}


def _runs(spec: TensorSpec, before: dict[int, int], after: dict[int, int], per_core: float) -> float:
    """Contiguous runs of the pieces that one core exchanges: device dims that neither side divides stay together."""
    run = STICK_BYTES
    dims = list(zip(spec.layout.device_size[:-1], spec.layout.stride_map[:-1], strict=True))
    eps = spec.layout.device_size[-1]
    for extent, stride in reversed(dims):
        own = stride // eps if stride > 0 and stride % eps == 0 and stride // eps in {*before, *after} else stride
        pieces = max(before.get(own, 1), after.get(own, 1))
        run *= max(1, extent // pieces)
        if pieces > 1:
            break
    return max(1.0, per_core / run)
