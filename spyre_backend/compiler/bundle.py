"""Stage 8, bundling (D4.6): consecutive device operations become one program; only host operators break a bundle."""

from __future__ import annotations

from spyre_backend import capabilities
from spyre_backend.compiler import scratchpad
from spyre_backend.compiler.errors import refuse
from spyre_backend.compiler.graph import Buffer, Graph, operands
from spyre_backend.program import Op, Operand, Program, TensorKind, TensorSpec


def build_program(name: str, graph: Graph, ops: list[Op], kept: frozenset[str]) -> Program:
    """The program of one bundle.

    Args:
        name: shown in traces and logs.
        graph: buffers with layouts.
        ops: the bundle's operations.
        kept: buffers that the host allocates: arguments of the launch; all others are temporaries of the bundle.
    """
    _check_dtypes(ops)
    written = {op.output.tensor for op in ops}
    read_first = _read_before_written(ops)
    names = dict.fromkeys(o.tensor for op in ops for o in (*operands(op), op.output))
    temporaries = frozenset(n for n in names if n not in kept)
    addresses = scratchpad.plan(ops, graph.buffers, temporaries)
    specs = []
    for tensor in names:
        kind: TensorKind = "temp"
        if tensor in kept:
            kind = "input" if tensor not in written else "inout" if tensor in read_first else "output"
        specs.append(_spec(graph.buffers[tensor], kind, addresses.get(tensor)))
    capability = capabilities.current()
    return Program(
        name=name,
        release=capability.release,
        fingerprint=capability.fingerprint,
        tensors=tuple(specs),
        ops=tuple(ops),
        arguments=tuple(s.name for s in specs if s.kind != "temp"),
    )


def _spec(buffer: Buffer, kind: TensorKind, address: int | None) -> TensorSpec:
    assert buffer.layout is not None
    return TensorSpec(
        name=buffer.name,
        kind=kind,
        dtype=buffer.dtype,
        size=buffer.size,
        stride=buffer.stride,
        layout=buffer.layout,
        lx_address=address,
    )


def _read_before_written(ops: list[Op]) -> frozenset[str]:
    """Tensors whose earlier content matters: read first, or written only in part (a slice of a larger tensor)."""
    done: set[str] = set()
    needed: set[str] = set()
    for op in ops:
        needed.update(o.tensor for o in operands(op) if o.tensor not in done)
        done.add(op.output.tensor)
    return frozenset(needed)


def _check_dtypes(ops: list[Op]) -> None:
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
    return op.name in ("dl16tofp32", "fp32todl16", "identity", "fill") or (
        op.name == "gather" and operand is not op.inputs[0]
    )


def _family(name: str) -> str:
    """The name under which D1.6 lists an operation."""
    if name.startswith("exx2"):
        return "exx2"
    return {"powi": "mul", "square": "mul", "gather": "identity"}.get(name, name)
