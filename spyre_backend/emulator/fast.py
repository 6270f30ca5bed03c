"""The fast executor: runs a program with whole-tensor torch operations over strided views.

Every result is rounded to its device format, so the numbers are the device's, but nothing is tiled: what the scratchpad
holds and which core computes what does not show here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from contextlib import nullcontext
from functools import lru_cache

import torch
from torch import Tensor

from spyre_backend.capabilities.model import Numerics
from spyre_backend.emulator.context import DL16_DTYPES, TORCH_DTYPES, ExecutionError
from spyre_backend.emulator.indexing import scatter
from spyre_backend.emulator.numerics import dl16_decode, dl16_round, dl16_round_
from spyre_backend.emulator.plan import Access, Step, failure, prepare
from spyre_backend.program import Program, TensorSpec


class Plan:
    """A program prepared for repeated execution; holds no tensor data and may be run from several threads."""

    def __init__(self, program: Program, numerics: Numerics | None = None) -> None:
        """Prepare `program`; raises SpyreRuntimeError if it is malformed (see ``plan.prepare``)."""
        self.program = program
        self._steps = prepare(program, numerics)
        self._specs = {spec.name: spec for spec in program.tensors}

    def run(self, tensors: dict[str, Tensor], replaceable: Collection[str] = ()) -> None:
        """Execute on `tensors` (see :func:`execute`).

        Outputs named in `replaceable` need not be in `tensors`: the executor puts its own tensor there, which saves a
        copy.

        Raises:
            SpyreRuntimeError: an operation failed; names its position, function and origin.
        """
        # The caller's autocast is about its own operations, not about how the device computes.
        with (
            torch.no_grad(),
            torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext(),
        ):
            sharing = not _overlap(tensors.values())
            for step in self._steps:
                try:
                    if not (sharing and step.shares and _share(step, tensors)):
                        self._run_step(step, tensors, replaceable)
                except (ExecutionError, RuntimeError, IndexError, ValueError) as error:
                    raise failure(self.program, step.position, error) from error
                for name in step.released:
                    tensors.pop(name, None)

    def _run_step(self, step: Step, tensors: dict[str, Tensor], replaceable: Collection[str]) -> None:
        target = step.output.tensor
        if 0 in step.output.size or step.op.name == "scatter":
            if target not in tensors:
                tensors[target] = allocate(self._specs[target], filled=True)
            if 0 not in step.op.dims and step.op.name == "scatter":
                _store(step, tensors)
            return
        operands = [item if isinstance(item, Tensor) else item.view(tensors) for item in step.inputs]
        result = _decoded(step.function(step.context, *operands), step)
        fresh = all(result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() for x in operands)
        if result.shape != step.output.size:
            result, fresh = result.expand(step.output.size), False
        result, fresh = finished(result, step, fresh)
        if target not in tensors:
            spec = self._specs[target]
            if spec.kind != "temp" and target not in replaceable:
                raise ExecutionError(f"no working tensor was given for {target!r}")
            if fresh and _adoptable(result, step):
                tensors[target] = result.as_strided((result.numel(),), (1,), result.storage_offset())
                return
            tensors[target] = allocate(spec, filled=not step.covers)
        view = step.output.view(tensors)
        if not fresh and view.untyped_storage().data_ptr() == result.untyped_storage().data_ptr():
            result = result.clone()
        view.copy_(result)


def allocate(spec: TensorSpec, *, filled: bool) -> Tensor:
    """Flat working memory for `spec`; `filled` writes what unwritten device memory reads as (NaN, -1 or True)."""
    dtype = TORCH_DTYPES[spec.dtype]
    memory = torch.empty((spec.storage_elements,), dtype=dtype, device="cpu")
    if not filled:
        return memory
    return memory.fill_(math.nan if dtype is torch.float32 else True if dtype is torch.bool else -1)


def _overlap(tensors: Iterable[Tensor]) -> bool:
    """Whether two of the working tensors may share memory."""
    addresses = [tensor.untyped_storage().data_ptr() for tensor in tensors if tensor.numel()]
    return len(set(addresses)) != len(addresses)


def _share(step: Step, tensors: dict[str, Tensor]) -> bool:
    """Let a copy's output be the memory of its operand; False if that is not held in the output's format."""
    source = step.inputs[0]
    assert isinstance(source, Access)
    memory = tensors.get(source.tensor)
    if memory is None or memory.dtype is not TORCH_DTYPES[step.op.output.dtype] or 0 in step.output.size:
        return False
    count = math.prod(step.output.size)
    tensors[step.output.tensor] = memory.as_strided((count,), (1,), memory.storage_offset() + source.offset)
    return True


def _store(step: Step, tensors: dict[str, Tensor]) -> None:
    """Rows stored by an index."""
    dims = step.op.dims
    values, index = (item if isinstance(item, Tensor) else item.view(tensors) for item in step.inputs)
    result, _ = finished(step.function(step.context, values, index).expand(dims), step, fresh=False)
    scatter(step.output.view(tensors), index.expand(dims), result)


def _decoded(result: Tensor, step: Step) -> Tensor:
    """A gather from a table that is still in DL16 codes decodes only what it picked."""
    return dl16_decode(result) if result.dtype is torch.int16 and step.op.inputs[0].dtype in DL16_DTYPES else result


def finished(result: Tensor, step: Step, fresh: bool) -> tuple[Tensor, bool]:
    """`result` in the working dtype of the output, rounded if need be; and whether it is memory of its own."""
    wanted = TORCH_DTYPES[step.op.output.dtype]
    if result.dtype is not wanted:
        result, fresh = _cast(result, wanted), True
    if step.op.output.dtype == "int64":
        result, fresh = result.to(torch.int32).to(torch.int64), True
    if step.rounds:
        result, fresh = (dl16_round_(result) if fresh else dl16_round(result)), True
    return result, fresh


def _cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert like the host does, but with defined results: NaN becomes 0 and values outside int32 saturate."""
    if x.is_floating_point() and dtype is not torch.bool:
        limits = torch.iinfo(torch.int32)
        return x.to(torch.float64).nan_to_num(0.0).clamp(limits.min, limits.max).to(torch.int64).to(dtype)
    return x.to(dtype)


def _adoptable(result: Tensor, step: Step) -> bool:
    """Whether the memory of `result` lies exactly as the tensor's own would."""
    pairs = zip(step.output.size, result.stride(), step.output.stride, strict=True)
    return step.dense and all(have == want for extent, have, want in pairs if extent > 1)


class _Holder:
    """Hashes a program by identity: hashing its contents at every call would cost more than small programs."""

    __slots__ = ("program",)

    def __init__(self, program: Program) -> None:
        self.program = program

    def __hash__(self) -> int:
        return id(self.program)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Holder) and other.program is self.program


@lru_cache(maxsize=256)
def _plan(holder: _Holder) -> Plan:
    return Plan(holder.program)


def execute(program: Program, tensors: dict[str, Tensor]) -> None:
    """Run `program` on decoded working tensors, writing its outputs in place.

    Args:
        program: what to run; its numeric settings are those of ``program.release``.
        tensors: for each tensor that is not a temp, a flat CPU tensor in storage order whose element 0 is the tensor's
            own first element: float32 for fp16, bf16 (holding DL16 values) and fp32, else the natural dtype.  A table
            that only ``gather`` reads may be given as int16 DL16 codes.  Tensors may share memory.

    Raises:
        SpyreRuntimeError: the program is malformed, a tensor is missing, or an operation failed (with its position,
            name and origin).
    """
    _plan(_Holder(program)).run(dict(tensors))
