"""Prepares a program for execution: every operation becomes a step with its views, constants and function resolved.

Preparing also checks what a compiler could get wrong: unknown tensors, accesses outside a tensor, stride lists of the
wrong length.  A mistake is reported with the operation's position, name and origin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spyre_backend.capabilities import load
from spyre_backend.capabilities.model import Numerics
from spyre_backend.emulator.context import DL16_DTYPES, TORCH_DTYPES, Context, ExecutionError, Primitive, constant
from spyre_backend.emulator.primitives import COPIES, EXACT, SIXTEEN_BIT_ONLY, TOPK, lookup
from spyre_backend.errors import SpyreRuntimeError
from spyre_backend.program import Const, Op, Operand, Program, TensorSpec


@dataclass(frozen=True, slots=True)
class Access:
    """An operand as a view of a tensor's storage: torch size, stride and offset."""

    tensor: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def view(self, environment: Mapping[str, Tensor]) -> Tensor:
        """The view over the working tensor of this name (which may itself be a slice of a larger one)."""
        storage = environment.get(self.tensor)
        if storage is None:
            raise ExecutionError(f"tensor {self.tensor!r} is read before anything wrote it")
        return torch.as_strided(storage, self.size, self.stride, storage.storage_offset() + self.offset)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One operation, ready to run.

    ``rounds`` says that the result must still be rounded to DL16, ``covers`` that it fills the whole tensor, ``dense``
    that it does so without gaps from the first element on.  ``shares`` marks a copy whose output may simply be the
    operand's memory.  ``released`` are the temps of which this step is the last user.
    """

    position: int
    op: Op
    context: Context
    function: Primitive
    inputs: tuple[Access | Tensor, ...]
    output: Access
    rounds: bool
    covers: bool
    dense: bool
    shares: bool
    released: tuple[str, ...]


def describe(position: int, op: Op) -> str:
    """Names an operation in an error: position, device function, iteration space and where it comes from."""
    origin = op.origin
    parts = [f"op {position} ({op.name} over {list(op.dims)})"]
    if origin.aten:
        parts.append(f"from {origin.aten}")
    if origin.module_path:
        parts.append(f"in module {origin.module_path}")
    if origin.source_line:
        parts.append(f"at {origin.source_line}")
    return " ".join(parts)


def failure(program: Program, position: int, reason: object) -> SpyreRuntimeError:
    """The error for an operation that cannot be executed."""
    return SpyreRuntimeError(f"program {program.name!r}, {describe(position, program.ops[position])}: {reason}")


def prepare(program: Program, numerics: Numerics | None = None) -> tuple[Step, ...]:
    """The steps of `program`, with the numeric settings of its release unless others are given.

    Raises:
        SpyreRuntimeError: an operation is unknown, malformed, or reaches outside a tensor.
    """
    settings = load(program.release).numerics if numerics is None else numerics
    specs = {spec.name: spec for spec in program.tensors}
    if len(specs) != len(program.tensors):
        raise SpyreRuntimeError(f"program {program.name!r} declares a tensor twice")
    released = _last_uses(program, specs)
    writers = _writers(program)
    steps = []
    for position, op in enumerate(program.ops):
        try:
            steps.append(_step(position, op, specs, settings, writers, released.get(position, ())))
        except (ExecutionError, KeyError) as error:
            reason = error if isinstance(error, ExecutionError) else f"unknown tensor or dtype {error}"
            raise failure(program, position, reason) from error
    return tuple(steps)


def _last_uses(program: Program, specs: Mapping[str, TensorSpec]) -> dict[int, tuple[str, ...]]:
    """For each operation, the temps that no later one needs."""
    last: dict[str, int] = {}
    for position, op in enumerate(program.ops):
        for operand in (*op.inputs, op.output):
            if isinstance(operand, Operand):
                last[operand.tensor] = position
    result: dict[int, tuple[str, ...]] = {}
    for name, position in last.items():
        if name in specs and specs[name].kind == "temp":
            result[position] = (*result.get(position, ()), name)
    return result


def _writers(program: Program) -> dict[str, list[int]]:
    """For each tensor, the positions of the operations that write it."""
    result: dict[str, list[int]] = {}
    for position, op in enumerate(program.ops):
        result.setdefault(op.output.tensor, []).append(position)
    return result


def _step(
    position: int,
    op: Op,
    specs: Mapping[str, TensorSpec],
    numerics: Numerics,
    writers: Mapping[str, list[int]],
    released: tuple[str, ...],
) -> Step:
    if op.name == "LxRelayout":
        op = _one_copy(op)
    if not 0 <= op.reduced <= len(op.dims) or any(extent < 0 for extent in op.dims):
        raise ExecutionError(f"{op.reduced} reduced dims of iteration space {list(op.dims)}")
    dtypes = tuple(operand.dtype for operand in op.inputs)
    floats = [dtype for dtype in dtypes if dtype.startswith(("float", "bfloat"))]
    narrow = any(dtype in DL16_DTYPES for dtype in floats) if floats else op.output.dtype in DL16_DTYPES
    if op.name in SIXTEEN_BIT_ONLY and "float32" in floats:
        raise ExecutionError("the device has this function for 16-bit floats only, not for float32 (D1.6)")
    context = Context(
        name=op.name,
        dims=op.dims,
        reduced=op.reduced,
        attrs=op.attrs,
        in_dtypes=dtypes,
        out_dtype=op.output.dtype,
        dl16=narrow,
        numerics=numerics,
    )
    function = lookup(op.name)
    inputs = tuple(_input(op, index, specs, context) for index in range(len(op.inputs)))
    output = _output(op, specs, context)
    exact = op.name in EXACT and all(dtype in DL16_DTYPES or dtype == "bool" for dtype in dtypes)
    rounds = op.output.dtype in DL16_DTYPES and not exact and op.name != "batchmatmul"
    spec = specs[op.output.tensor]
    count = math.prod(output.size)
    dense = output.offset == 0 and count == spec.storage_elements
    copied = op.inputs[0] if op.name in COPIES and not rounds and dense and spec.kind == "temp" else None
    return Step(
        position=position,
        op=op,
        context=context,
        function=function,
        inputs=inputs,
        output=output,
        rounds=rounds,
        covers=count == math.prod(spec.size) and op.name != "scatter",
        dense=dense and op.name != "scatter",
        shares=isinstance(copied, Operand) and _may_share(position, op, copied, writers),
        released=released,
    )


def _one_copy(op: Op) -> Op:
    """A relayout without its dims of copies (stride 0), which only say how many cores hold the same elements."""
    return replace(op, dims=tuple(n if s else min(n, 1) for n, s in zip(op.dims, op.output.strides, strict=True)))


def _may_share(position: int, op: Op, source: Operand, writers: Mapping[str, list[int]]) -> bool:
    """Whether a copy to a temp moves nothing, and neither side is written afterwards (or the temp before)."""
    moved = any(a != b for n, a, b in zip(op.dims, source.strides, op.output.strides, strict=True) if n > 1)
    later = max(writers.get(source.tensor, (-1,))) >= position
    same_format = TORCH_DTYPES[source.dtype] is TORCH_DTYPES[op.output.dtype]
    return not moved and not later and same_format and writers[op.output.tensor] == [position]


def _input(op: Op, index: int, specs: Mapping[str, TensorSpec], context: Context) -> Access | Tensor:
    operand = op.inputs[index]
    if isinstance(operand, Const):
        return _constant(operand, context)
    spec = _checked(operand, op, specs)
    if op.name == "gather" and index == 0:
        return _table(operand, op, spec, context)
    return _access(operand, op.dims, spec)


def _checked(operand: Operand, op: Op, specs: Mapping[str, TensorSpec]) -> TensorSpec:
    if operand.tensor not in specs:
        raise ExecutionError(f"tensor {operand.tensor!r} is not declared in the program")
    spec = specs[operand.tensor]
    if spec.dtype != operand.dtype:
        raise ExecutionError(f"operand of {spec.name!r} says {operand.dtype}, the tensor is {spec.dtype}")
    if len(operand.strides) != len(op.dims):
        raise ExecutionError(f"operand of {spec.name!r} has {len(operand.strides)} strides for {len(op.dims)} dims")
    if spec.dtype not in TORCH_DTYPES:
        raise ExecutionError(f"tensor {spec.name!r} has dtype {spec.dtype}, which the executor does not hold")
    return spec


def _access(operand: Operand, size: tuple[int, ...], spec: TensorSpec) -> Access:
    """A view of `size`, checked to stay inside the tensor."""
    strides = tuple(stride if extent > 1 else 0 for stride, extent in zip(operand.strides, size, strict=True))
    if 0 not in size:
        steps = [stride * (extent - 1) for stride, extent in zip(strides, size, strict=True)]
        low = operand.offset + sum(step for step in steps if step < 0)
        high = operand.offset + sum(step for step in steps if step > 0)
        if min(strides, default=0) < 0:
            raise ExecutionError(f"operand of {spec.name!r} walks backwards (strides {list(operand.strides)})")
        if low < 0 or high >= spec.storage_elements:
            raise ExecutionError(
                f"operand of {spec.name!r} reaches elements {low}..{high} of a tensor of {spec.storage_elements} "
                f"(size {list(spec.size)}, strides {list(operand.strides)}, offset {operand.offset})"
            )
    return Access(operand.tensor, size, operand.strides, operand.offset)


def _table(operand: Operand, op: Op, spec: TensorSpec, context: Context) -> Access:
    """What a gather reads and a scatter writes: one more leading dim, which the index values walk."""
    step = context.integer("index_stride")
    if step <= 0:
        raise ExecutionError(f"attribute 'index_stride' must be positive, not {step}")
    inner = _access(operand, op.dims, spec)
    span = sum(max(0, stride * (extent - 1)) for stride, extent in zip(operand.strides, op.dims, strict=True))
    rows = (spec.storage_elements - 1 - operand.offset - span) // step + 1
    return Access(operand.tensor, (max(rows, 0), *inner.size), (step, *inner.stride), operand.offset)


def _output(op: Op, specs: Mapping[str, TensorSpec], context: Context) -> Access:
    spec = _checked(op.output, op, specs)
    if op.name == "scatter":
        return _table(op.output, op, spec, context)
    kept = len(op.dims) if op.name in TOPK else len(op.dims) - op.reduced
    size = (*op.dims[:-1], context.integer("k")) if op.name in TOPK else op.dims[:kept]
    trimmed = Operand(
        tensor=op.output.tensor, strides=op.output.strides[:kept], offset=op.output.offset, dtype=op.output.dtype
    )
    access = _access(trimmed, size, spec)
    if 0 not in size and any(stride == 0 and extent > 1 for stride, extent in zip(access.stride, size, strict=True)):
        raise ExecutionError(
            f"the output {spec.name!r} would be written more than once (strides {list(access.stride)})"
        )
    return access


def _constant(operand: Const, context: Context) -> Tensor:
    dtype = TORCH_DTYPES.get(operand.dtype)
    if dtype is None:
        raise ExecutionError(f"constant of dtype {operand.dtype}, which the executor does not hold")
    value = operand.value
    if dtype is torch.float32:
        value = constant(float(value), operand.dtype in DL16_DTYPES, context.numerics)
    return torch.tensor(value, dtype=dtype, device="cpu")
