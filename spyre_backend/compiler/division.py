"""Stage 6, work division over the cores (D4.4): span reduction first, then divisors of the output dims, K last.

A dim is divided evenly, by a divisor of its extent; where it runs along a stick it is counted in sticks.  Reduced dims
stay whole, but for the K of a matmul.  Matmuls choose among all such divisions by a cost model
(:mod:`~spyre_backend.compiler.division_matmul`), everything else fills its output dims in the order of their size.
Every tensor's per-core span and every loop's trip count is checked against the limits of D1.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from spyre_backend import capabilities
from spyre_backend.capabilities import Limits
from spyre_backend.compiler import coherence, core_order, division_matmul, settings, tiling
from spyre_backend.compiler.errors import refuse
from spyre_backend.compiler.graph import DEVICE_ITEMSIZE, Buffer, Graph, describe_op, operands
from spyre_backend.compiler.ownership import units_of
from spyre_backend.compiler.residents import MEMORY_ONLY
from spyre_backend.program import Op, Operand


@dataclass(frozen=True, slots=True)
class Space:
    """An operation's iteration space as it may be divided.

    ``counts`` are the pieces that each dim consists of at most (sticks where a stick runs along it, 1 where it must
    stay whole), ``kept`` the number of dims that are not reduced, ``cores`` those that may be used.
    """

    op: Op
    counts: tuple[int, ...]
    kept: int
    cores: int


def divide(graph: Graph) -> None:
    """Give every operation its split and its core numbering.

    Raises:
        SpyreUnsupported: rule ``span-limit`` or ``trip-count``.
    """
    limits = capabilities.current().limits
    chosen = settings.current()
    cores = min(chosen.cores or limits.num_cores, limits.num_cores)
    held: coherence.Held = {}
    result = []
    for op in (part for whole in graph.ops for part in _parts(graph.buffers, whole, limits, cores, chosen)):
        if op.name not in MEMORY_ONLY:
            if chosen.follow and op.name != "batchmatmul":
                op = _following(graph.buffers, op, held, limits, cores)
            if math.prod(op.split[len(op.dims) - op.reduced :]) == 1:
                op = coherence.renumbered(graph.buffers, op, held)
            coherence.remember(graph.buffers, op, held)
        result.append(op)
    graph.ops = result


def describe(graph: Graph) -> str:
    """One line for each operation with its cores and the numbering, as ``explain`` shows them."""
    lines = []
    for op in graph.ops:
        order = f" numbered {'<'.join(f'd{d}' for d in op.core_order)}" if op.core_order else ""
        lines.append(f"{math.prod(op.split):3d} cores{order}  {describe_op(op)}")
    return "\n".join(lines)


def space_of(buffers: Mapping[str, Buffer], op: Op, cores: int) -> Space:
    """The iteration space of ``op`` with what may be divided."""
    units = units_of(buffers, op)
    counts = [max(-(-n // unit), 1) for n, unit in zip(op.dims, units, strict=True)]
    for dim in (*_straddling(buffers[op.output.tensor], op), *_indexed_rows(op)):
        counts[dim] = 1
    return Space(op=op, counts=tuple(counts), kept=len(op.dims) - op.reduced, cores=cores)


def _straddling(buffer: Buffer, op: Op) -> list[int]:
    """Dims whose slices would share a stick of the output, because the store begins inside one (cat, #3875)."""
    assert buffer.layout is not None
    stick = buffer.layout.stick_dim
    if stick is None:
        return []
    step, extent = max(buffer.stride[stick], 1), buffer.size[stick]
    if (op.output.offset // step) % extent % buffer.eps == 0:
        return []
    return [d for d, s in enumerate(op.output.strides) if s and s % step == 0 and s < step * extent]


def _indexed_rows(op: Op) -> list[int]:
    """Dims along which an index chooses rows: one core stores all, in order, so that of equal ones the last stays."""
    return [d for d, s in enumerate(op.output.strides) if not s and op.dims[d] > 1] if op.name == "scatter" else []


def largest_divisor(extent: int, most: int) -> int:
    """The largest divisor of ``extent`` that is at most ``most`` (>= 1)."""
    return next(d for d in range(min(extent, most), 0, -1) if extent % d == 0)


def divisors(extent: int, most: int) -> list[int]:
    """All divisors of ``extent`` from 1 to ``most``."""
    return [d for d in range(1, min(extent, most) + 1) if extent % d == 0]


def _divided(buffers: Mapping[str, Buffer], op: Op, limits: Limits, cores: int, chosen: settings.Settings) -> Op:
    space = space_of(buffers, op, cores)
    split = [1] * len(op.dims)
    for operand in (op.output, *operands(op)):
        _reduce_span(space, operand, split, buffers[operand.tensor], limits)
    least = tuple(split)
    _distribute(space, split)
    if op.name == "batchmatmul" and chosen.matmul_split == "cost":
        a, b = operands(op)
        volume = [buffers[o.tensor].layout.num_bytes for o in (a, b, op.output)]  # type: ignore[union-attr]
        found = division_matmul.choose(op, space.counts, least, cores, (volume[0], volume[1], volume[2]))
        if found is not None and all(_span(o, op, found, buffers) <= limits.span_limit_bytes for o in (a, b)):
            split = list(found)
    _check(op, split, space.counts, buffers, limits)
    return replace(op, split=tuple(split), core_order=core_order.number(op, split, k_fast=chosen.k_fast))


def _parts(buffers: Mapping[str, Buffer], op: Op, limits: Limits, cores: int, chosen: settings.Settings) -> list[Op]:
    """``op`` divided; in tiles where the release tiles what exceeds the span limit."""
    if capabilities.current().settings.ignore_span_overflow_hints:
        return [_divided(buffers, op, limits, cores, chosen)]
    counts = space_of(buffers, op, cores).counts
    return tiling.tiled(op, counts, units_of(buffers, op), lambda part: _divided(buffers, part, limits, cores, chosen))


def _distribute(space: Space, split: list[int]) -> None:
    """Give the cores that are left to the output dims, the largest first; the K of a matmul comes last (D4.4)."""
    cores = space.cores // math.prod(split)
    for dim in sorted(range(space.kept), key=lambda d: -space.counts[d]):
        pieces = largest_divisor(space.counts[dim] // split[dim], cores)
        split[dim] *= pieces
        cores //= pieces
    if space.op.name == "batchmatmul" and cores > 1:
        split[-1] = largest_divisor(space.counts[-1], cores)


def _reduce_span(space: Space, operand: Operand, split: list[int], buffer: Buffer, limits: Limits) -> None:
    """Split output dims further, as little as possible, until one core's span of ``operand`` fits (D4.4, step 1)."""
    span = span_bytes(operand, space.op, split, buffer)
    while span > limits.span_limit_bytes:
        cores = space.cores // math.prod(split)
        best: tuple[bool, int, int, int] | None = None
        for dim, count in enumerate(space.counts[: space.kept]):
            for pieces in divisors(count // split[dim], cores)[1:]:
                tried = [*split[:dim], split[dim] * pieces, *split[dim + 1 :]]
                reached = span_bytes(operand, space.op, tried, buffer)
                fits = reached <= limits.span_limit_bytes
                rank = (not fits, pieces if fits else reached, dim, pieces)
                if reached < span and (best is None or rank < best):
                    best = rank
        if best is None:
            return
        split[best[2]] *= best[3]
        span = span_bytes(operand, space.op, split, buffer)


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


def _span(operand: Operand, op: Op, split: Sequence[int], buffers: Mapping[str, Buffer]) -> int:
    return span_bytes(operand, op, split, buffers[operand.tensor])


def span_bytes(operand: Operand, op: Op, split: Sequence[int], buffer: Buffer) -> int:
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
    if operand == indexed_operand(op):
        step = int(op.attrs["index_stride"])
        device = next((d * (step // h) for h, d in table if step >= h and step % h == 0), 0)
        reach += (int(op.attrs["index_extent"]) - 1) * device
    return reach * DEVICE_ITEMSIZE[buffer.dtype]


def indexed_operand(op: Op) -> Operand | None:
    """The operand whose rows an index chooses, all of which every core must be able to address (D6.6, D6.9)."""
    found = op.inputs[0] if op.name == "gather" else op.output if op.name == "scatter" else None
    return found if isinstance(found, Operand) else None


def _check(op: Op, split: list[int], counts: Sequence[int], buffers: Mapping[str, Buffer], limits: Limits) -> None:
    for operand in (op.output, *operands(op)):
        buffer = buffers[operand.tensor]
        span = span_bytes(operand, op, split, buffer)
        if op.name == "gather" and operand == op.inputs[0] and buffer.layout is not None:
            span = max(span, buffer.layout.num_bytes // limits.gather_split_max)
        if span > limits.span_limit_bytes:
            raise refuse(
                "span-limit",
                op=op.name,
                detail=(
                    f"Cannot satisfy span limit for tensor {operand.tensor}: size {list(buffer.size)} still evaluates "
                    f"to {span} after splits {split}. Inner dimensions cannot reduce span further. "
                    f"Best span={span}, limit={limits.span_limit_bytes}."
                ),
                shapes=[buffer.size],
                dtypes=[buffer.dtype],
                origin=op.origin,
            )
    rows = _indexed_rows(op)
    for dim, count in enumerate(counts):
        trips = -(-(op.dims[dim] if dim in rows else count) // split[dim])
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


def _following(buffers: Mapping[str, Buffer], op: Op, held: coherence.Held, limits: Limits, cores: int) -> Op:
    """``op`` divided like what it reads, if fewer bytes move then and no fewer cores are used than by its own split."""
    counts = space_of(buffers, op, cores).counts
    best, least = op, coherence.moved_bytes(buffers, op, held)
    for followed in coherence.followers(buffers, op, held):
        moved = coherence.moved_bytes(buffers, followed, held)
        even = not any(count % pieces for count, pieces in zip(counts, followed.split, strict=True))
        enough = math.prod(followed.split) >= math.prod(op.split)
        spans = (_span(o, op, followed.split, buffers) for o in (op.output, *operands(op)))
        if moved < least and even and enough and all(span <= limits.span_limit_bytes for span in spans):
            best, least = followed, moved
    return best
