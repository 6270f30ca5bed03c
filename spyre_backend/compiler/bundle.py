"""Stage 8, bundling (D4.6): consecutive device operations become one program; only host operators break a bundle."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spyre_backend import capabilities
from spyre_backend.compiler import hbm_pool, scratchpad, settings, silent_bugs
from spyre_backend.compiler.errors import refuse
from spyre_backend.compiler.graph import Buffer, Graph, operands
from spyre_backend.compiler.writes import needed_content
from spyre_backend.program import Op, Operand, Program, TensorKind, TensorSpec


@dataclass(frozen=True, slots=True)
class Bundle:
    """A program, and what the scratchpad planner and the bundler have to say about it."""

    program: Program
    scratchpad_notes: list[str]
    notes: list[str]


def build_program(name: str, graph: Graph, ops: Sequence[Op], kept: frozenset[str]) -> Bundle:
    """The program of one bundle.

    Args:
        name: shown in traces and logs.
        graph: buffers with layouts.
        ops: the bundle's operations, divided.
        kept: buffers that the host allocates: arguments of the launch; all others are temporaries of the bundle.
    """
    _check_dtypes(ops)
    planned = scratchpad.plan(ops, graph.buffers, _names(ops).difference(kept))
    buffers = {**graph.buffers, **planned.made}
    lives = _lives(planned.ops, buffers, kept.union(planned.addresses))
    pooled = settings.current().hbm_pool
    offsets = hbm_pool.plan(lives, shared=pooled)
    _check_region(planned.ops, hbm_pool.extent(lives, offsets))
    written = {op.output.tensor for op in planned.ops}
    needed = needed_content(planned.ops, buffers)
    specs = []
    for tensor in dict.fromkeys(o.tensor for op in planned.ops for o in (*operands(op), op.output)):
        kind: TensorKind = "temp"
        if tensor in kept:
            kind = "input" if tensor not in written else "inout" if tensor in needed else "output"
        specs.append(_spec(buffers[tensor], kind, planned.addresses, offsets))
    capability, changed = capabilities.current(), settings.current().key
    program = Program(
        name=name,
        release=capability.release,
        fingerprint=capability.fingerprint + (f"+{changed}" if changed else ""),
        tensors=tuple(specs),
        ops=tuple(silent_bugs.apply(planned.ops, {spec.name: spec for spec in specs})),
        arguments=tuple(s.name for s in specs if s.kind != "temp"),
    )
    return Bundle(program, planned.notes, _story(program, lives, offsets))


def _names(ops: Sequence[Op]) -> frozenset[str]:
    return frozenset(o.tensor for op in ops for o in (*operands(op), op.output))


def _lives(ops: Sequence[Op], buffers: Mapping[str, Buffer], elsewhere: frozenset[str]) -> list[hbm_pool.Life]:
    """The temporaries that lie in the bundle's region of device memory."""
    seen: dict[str, tuple[int, int]] = {}
    for position, op in enumerate(ops):
        for operand in (*operands(op), op.output):
            first, _ = seen.get(operand.tensor, (position, position))
            seen[operand.tensor] = (first, position)
    lives = []
    for name, (first, last) in seen.items():
        layout = buffers[name].layout
        assert layout is not None
        if name not in elsewhere:
            lives.append(hbm_pool.Life(name, first, last, layout.num_bytes))
    return lives


def _check_region(ops: Sequence[Op], needed: int) -> None:
    limit = capabilities.current().limits.pool_bytes_max
    if limit and needed > limit:
        raise refuse(
            "pool-limit",
            op="bundle",
            detail=f"{needed} bytes of temporaries at a time, the pool holds {limit}",
            shapes=[max((op.dims for op in ops), key=math.prod)],
        )


def _story(program: Program, lives: Sequence[hbm_pool.Life], offsets: dict[str, int]) -> list[str]:
    """What a bundle consists of, and where its temporaries in device memory lie."""
    total = sum(life.num_bytes for life in lives)
    lines = [
        f"{program.name}: {len(program.ops)} operations, arguments {', '.join(program.arguments)}",
        f"{len(lives)} temporaries of {total} bytes in a region of {hbm_pool.extent(lives, offsets)} bytes",
    ]
    return lines + [
        f"{life.name}: device memory {offsets[life.name]}..{offsets[life.name] + life.num_bytes}, "
        f"operations {life.first} to {life.last}"
        for life in lives
    ]


def _spec(buffer: Buffer, kind: TensorKind, addresses: Mapping[str, int], offsets: Mapping[str, int]) -> TensorSpec:
    assert buffer.layout is not None
    return TensorSpec(
        name=buffer.name,
        kind=kind,
        dtype=buffer.dtype,
        size=buffer.size,
        stride=buffer.stride,
        layout=buffer.layout,
        padding=buffer.padding,
        lx_address=addresses.get(buffer.name),
        hbm_offset=offsets.get(buffer.name),
    )


def _check_dtypes(ops: Sequence[Op]) -> None:
    """D1.6: which device operations take fp32 and integers."""
    dtypes = capabilities.current().dtypes
    for op in ops:
        for operand in operands(op):
            rule = None if _is_cast(op, operand) else dtypes.rule_for(_family(op.name), operand.dtype)
            if rule is not None:
                raise refuse(
                    rule,
                    op=op.name,
                    detail=f"{op.name} does not take {operand.dtype}",
                    shapes=[op.dims],
                    dtypes=[operand.dtype],
                    origin=op.origin,
                )


def _is_cast(op: Op, operand: Operand) -> bool:
    return op.name in ("dl16tofp32", "fp32todl16", "fp8todl16", "identity", "fill") or (
        op.name in ("gather", "scatter") and operand is op.inputs[1]
    )


def _family(name: str) -> str:
    """The name under which D1.6 lists an operation."""
    if name.startswith("exx2"):
        return "exx2"
    return {"powi": "mul", "square": "mul", "gather": "identity", "scatter": "identity"}.get(name, name)
