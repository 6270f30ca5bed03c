"""Stage 6, work division over the cores (D4.4): span reduction first, then divisors of the output dims, K last.

The split of a dim divides it evenly; a stick dim is counted in sticks; reduced dims stay whole, but for the K of a
matmul.
Every tensor's per-core span and every loop's trip count is checked against the limits of D1.4.
"""

from __future__ import annotations

import math
from dataclasses import replace

from spyre_backend import capabilities
from spyre_backend.capabilities import Limits
from spyre_backend.compiler.errors import refuse
from spyre_backend.compiler.graph import DEVICE_ITEMSIZE, Buffer, Graph, operands
from spyre_backend.program import Op, Operand


def divide(graph: Graph) -> None:
    """Give every operation its split.

    Raises:
        SpyreUnsupported: rule ``span-limit`` or ``trip-count``.
    """
    limits = capabilities.current().limits
    graph.ops = [_divided(graph, op, limits) for op in graph.ops]


def largest_divisor(extent: int, most: int) -> int:
    """The largest divisor of ``extent`` that is at most ``most`` (>= 1)."""
    return next(d for d in range(min(extent, most), 0, -1) if extent % d == 0)


def _divided(graph: Graph, op: Op, limits: Limits) -> Op:
    kept = len(op.dims) - op.reduced
    counts = [_count(graph, op, dim) for dim in range(len(op.dims))]
    split = [1] * len(op.dims)
    for operand in (op.output, *operands(op)):
        _reduce_span(graph, op, operand, split, counts[:kept], limits)
    cores = limits.num_cores // math.prod(split)
    for dim in sorted(range(kept), key=lambda d: -counts[d]):
        pieces = largest_divisor(counts[dim] // split[dim], cores)
        split[dim] *= pieces
        cores //= pieces
    if op.name == "batchmatmul" and cores > 1:
        split[-1] = largest_divisor(counts[-1], cores)
    _check(graph, op, split, counts, limits)
    return replace(op, split=tuple(split))


def _reduce_span(graph: Graph, op: Op, operand: Operand, split: list[int], counts: list[int], limits: Limits) -> None:
    """Split further, as little as possible, until one core's span of ``operand`` fits (D4.4, step 1)."""
    buffer = graph.buffers[operand.tensor]
    span = span_bytes(operand, op, split, buffer)
    while span > limits.span_limit_bytes:
        cores = limits.num_cores // math.prod(split)
        best: tuple[bool, int, int, int] | None = None
        for dim, count in enumerate(counts):
            for pieces in _divisors(count // split[dim], cores):
                tried = [*split[:dim], split[dim] * pieces, *split[dim + 1 :]]
                reached = span_bytes(operand, op, tried, buffer)
                fits = reached <= limits.span_limit_bytes
                rank = (not fits, pieces if fits else reached, dim, pieces)
                if reached < span and (best is None or rank < best):
                    best = rank
        if best is None:
            return
        split[best[2]] *= best[3]
        span = span_bytes(operand, op, split, buffer)


def _divisors(extent: int, most: int) -> list[int]:
    return [d for d in range(2, min(extent, most) + 1) if extent % d == 0]


def _count(graph: Graph, op: Op, dim: int) -> int:
    """The extent of a loop dim as it is divided: in sticks where it runs along a stick."""
    extent = op.dims[dim]
    for operand in (op.output, *operands(op)):
        if operand.stick == dim:
            return -(-extent // graph.buffers[operand.tensor].eps)
    return max(extent, 1)


def _device_strides(buffer: Buffer) -> list[tuple[int, int]]:
    """(host stride, device stride in elements) of each device dim but the one inside the stick."""
    assert buffer.layout is not None
    sizes = buffer.layout.device_size
    steps, step = [], 1
    for extent in reversed(sizes):
        steps.append(step)
        step *= extent
    steps.reverse()
    dims = zip(buffer.layout.stride_map[:-1], steps[:-1], sizes[:-1], strict=True)
    return [(host, device) for host, device, extent in dims if host > 0 and extent > 1]


def span_bytes(operand: Operand, op: Op, split: list[int], buffer: Buffer) -> int:
    """Bytes between the first and the last element of ``buffer`` that one core touches (D1.4, D6.6)."""
    table = sorted(_device_strides(buffer), reverse=True)
    reach = buffer.eps
    for dim, stride in enumerate(operand.strides):
        if not stride or op.dims[dim] == 1:
            continue
        per_core = -(-op.dims[dim] // split[dim])
        if dim == operand.stick:
            stride, per_core = stride * buffer.eps, -(-per_core // buffer.eps)
        device = next((d * (stride // h) for h, d in table if stride >= h and stride % h == 0), 0)
        reach += (per_core - 1) * device
    return reach * DEVICE_ITEMSIZE[buffer.dtype]


def _check(graph: Graph, op: Op, split: list[int], counts: list[int], limits: Limits) -> None:
    for operand in (op.output, *operands(op)):
        buffer = graph.buffers[operand.tensor]
        span = span_bytes(operand, op, split, buffer)
        if span > limits.span_limit_bytes:
            raise refuse(
                "span-limit",
                op=op.name,
                detail=(
                    f"Cannot satisfy span limit for tensor {operand.tensor}: size {list(buffer.size)}, splits {split}. "
                    f"Best span={span}, limit={limits.span_limit_bytes}."
                ),
                shapes=[buffer.size],
                dtypes=[buffer.dtype],
                origin=op.origin,
            )
    for dim, count in enumerate(counts):
        trips = -(-count // split[dim])
        if trips > limits.loop_count_max:
            raise refuse(
                "trip-count",
                op=op.name,
                detail=(
                    f"loop over dim {dim} of {list(op.dims)} makes {trips} trips on each core, "
                    f"limit {limits.loop_count_max}"
                ),
                shapes=[op.dims],
                dtypes=[op.output.dtype],
                origin=op.origin,
            )
