"""Launching programs on device tensors: what Inductor's generated wrapper calls.

A launch opens device memory, decodes the arguments, executes the program and encodes what it wrote.  Arguments that
share device memory share working memory, too, so a program sees its own writes through every alias as it would on the
card.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from spyre_backend import _C, capabilities
from spyre_backend.emulator.context import DL16_DTYPES, TORCH_DTYPES
from spyre_backend.emulator.exact import ExactPlan
from spyre_backend.emulator.executors import current_executor
from spyre_backend.emulator.fast import Plan, allocate
from spyre_backend.emulator.numerics import dl16_decode, dl16_encode
from spyre_backend.errors import SpyreRuntimeError, SpyreUnsupported
from spyre_backend.program import Operand, Program, TensorSpec
from spyre_backend.runtime import memory
from spyre_backend.runtime.decoded import DECODED, Source
from spyre_backend.runtime.observed import launching
from spyre_backend.runtime.offsets import refusal_text, stick_coordinate

_INTERNED_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument of a launch: its spec, its device memory as the host sees it, and the bytes it spans."""

    spec: TensorSpec
    device: Tensor
    host: Tensor
    first: int
    last: int

    @property
    def writes(self) -> bool:
        return self.spec.kind in ("output", "inout")


class LoadedProgram:
    """A program ready to launch; equal programs (by digest) share one."""

    def __init__(self, program: Program) -> None:
        """Prepare `program`; raises SpyreRuntimeError if it is malformed."""
        self.program = program
        self.digest = program.digest
        self._plan = Plan(program)
        self._exact: ExactPlan | None = None
        self._specs = tuple(_argument_spec(program, name) for name in program.arguments)
        self._tables = _gather_tables(program)
        self._aligned_inputs = not capabilities.load(program.release).settings.graph_input_mid_stick

    def __repr__(self) -> str:
        return f"LoadedProgram({self.program.name!r}, {len(self.program.ops)} ops, digest {self.digest[:12]})"

    def launch(self, *args: Tensor) -> None:
        """Run on device tensors in the order of ``program.arguments``; outputs and inouts are written in place.

        Args:
            *args: spyre tensors with exactly the size, stride and dtype of their TensorSpec; any storage offset.

        Raises:
            SpyreRuntimeError: an argument does not fit its spec, or an operation failed.
        """
        if len(args) != len(self._specs):
            raise SpyreRuntimeError(
                f"program {self.program.name!r} takes {len(self._specs)} arguments "
                f"({', '.join(self.program.arguments)}), got {len(args)}"
            )
        for position, (arg, spec) in enumerate(zip(args, self._specs, strict=True)):
            _check(self.program.name, position, arg, spec)
            if self._aligned_inputs and stick_coordinate(arg):
                raise _misaligned(arg, spec)
        with launching(self.program), torch.no_grad(), memory.device_access():
            arguments = [_bind(arg, spec) for arg, spec in zip(args, self._specs, strict=True)]
            tensors, fresh = self._working_tensors(arguments)
            self._chosen_plan().run(tensors, fresh)
            for argument in arguments:
                if argument.writes and argument.device.numel():
                    _write_back(argument, tensors[argument.spec.name])
        _C.record_launch()

    def _chosen_plan(self) -> Plan | ExactPlan:
        """The plan of the executor that this context chose; the exact one is made when it is first wanted."""
        if current_executor() == "fast":
            return self._plan
        if self._exact is None:
            self._exact = ExactPlan(self.program)
        return self._exact

    def _working_tensors(self, arguments: Sequence[_Argument]) -> tuple[dict[str, Tensor], frozenset[str]]:
        """Decoded memory of each argument, and the names of the outputs that the executor may allocate itself."""
        tensors: dict[str, Tensor] = {}
        fresh: set[str] = set()
        for group in _overlapping(arguments):
            first = group[0]
            if len(group) > 1 and any(argument.writes for argument in group):
                _decode_shared(self.program.name, group, tensors)
            elif first.spec.kind == "output":
                fresh.add(first.spec.name)
                if not first.device.numel():
                    tensors[first.spec.name] = allocate(first.spec, filled=True)
            else:
                for argument in group:
                    tensors[argument.spec.name] = self._decode(argument)
        return tensors, frozenset(fresh)

    def _decode(self, argument: _Argument) -> Tensor:
        name = argument.spec.name
        flat = _flat(argument)
        if name in self._tables:
            return flat
        if argument.spec.kind == "input" and argument.spec.dtype in DL16_DTYPES:
            return DECODED.get(Source.of(argument.device, argument.spec), lambda: dl16_decode(flat))
        working = (
            dl16_decode(flat) if argument.spec.dtype in DL16_DTYPES else flat.to(TORCH_DTYPES[argument.spec.dtype])
        )
        return working.clone() if argument.writes and working.data_ptr() == flat.data_ptr() else working


def load_program(json_text: str) -> LoadedProgram:
    """The program of this JSON text, parsed once for each text and interned by digest.

    Raises:
        SpyreRuntimeError: the text is not a program, or the program is malformed.
    """
    with _lock:
        known = _by_text.get(json_text)
        if known is not None:
            _by_text.move_to_end(json_text)
            return known
    try:
        program = Program.from_json(json_text)
    except ValueError as error:
        raise SpyreRuntimeError(f"cannot load a program: {error}; clear the program cache and compile again") from error
    return intern_program(program, json_text)


def intern_program(program: Program, json_text: str | None = None) -> LoadedProgram:
    """The loaded form of `program`, shared with every equal one; raises SpyreRuntimeError if it is malformed."""
    text = program.to_json() if json_text is None else json_text
    with _lock:
        loaded = _by_digest.get(program.digest)
        if loaded is None:
            loaded = LoadedProgram(program)
        _remember(_by_digest, loaded.digest, loaded)
        _remember(_by_text, text, loaded)
        return loaded


_lock = threading.Lock()
_by_text: OrderedDict[str, LoadedProgram] = OrderedDict()
_by_digest: OrderedDict[str, LoadedProgram] = OrderedDict()


def _remember(table: OrderedDict[str, LoadedProgram], key: str, loaded: LoadedProgram) -> None:
    table[key] = loaded
    table.move_to_end(key)
    while len(table) > _INTERNED_MAX:
        table.popitem(last=False)


def _argument_spec(program: Program, name: str) -> TensorSpec:
    try:
        spec = program.tensor(name)
    except KeyError:
        raise SpyreRuntimeError(f"program {program.name!r} has an argument {name!r} that it does not declare") from None
    if spec.kind == "temp":
        raise SpyreRuntimeError(f"program {program.name!r} has the temp {name!r} as an argument")
    return spec


def _gather_tables(program: Program) -> frozenset[str]:
    """16-bit inputs that only gathers read, as their table: these stay in codes and only what is picked is decoded."""
    tables: set[str] = set()
    others: set[str] = set()
    for op in program.ops:
        others.add(op.output.tensor)
        for index, operand in enumerate(op.inputs):
            if isinstance(operand, Operand):
                (tables if op.name == "gather" and index == 0 else others).add(operand.tensor)
    narrow = {spec.name for spec in program.tensors if spec.kind == "input" and spec.dtype in DL16_DTYPES}
    return frozenset((tables - others) & narrow)


def _check(program: str, position: int, arg: object, spec: TensorSpec) -> None:
    """Refuse an argument that the program was not compiled for."""
    if not isinstance(arg, Tensor):
        problem = f"is a {type(arg).__name__}, not a tensor"
    elif arg.device.type != "spyre":
        problem = f"is on {arg.device}, not on the spyre device"
    elif arg.dtype is not getattr(torch, spec.dtype, None):
        problem = f"has dtype {arg.dtype}, compiled for torch.{spec.dtype}"
    elif tuple(arg.shape) != spec.size:
        problem = f"has size {list(arg.shape)}, compiled for {list(spec.size)}"
    elif not _same_strides(arg, spec):
        problem = f"has strides {list(arg.stride())}, compiled for {list(spec.stride)}"
    else:
        return
    raise SpyreRuntimeError(f"program {program!r}, argument {position} ({spec.name!r}) {problem}")


def _misaligned(arg: Tensor, spec: TensorSpec) -> SpyreUnsupported:
    """Neither Dynamo nor Inductor's cache looks at storage offsets: a program may meet a view it was not made for."""
    return SpyreUnsupported(
        op="graph input",
        rule="storage-offset",
        shapes=(tuple(arg.shape),),
        dtypes=(spec.dtype,),
        hint="make the view contiguous on the host before it is moved to the device",
        detail=refusal_text(spec.name, arg),
    )


def _same_strides(arg: Tensor, spec: TensorSpec) -> bool:
    if arg.numel() == 0:
        return True
    return all(a == s for n, a, s in zip(spec.size, arg.stride(), spec.stride, strict=True) if n > 1)


def _bind(arg: Tensor, spec: TensorSpec) -> _Argument:
    device = arg.detach()
    first = device.data_ptr()
    return _Argument(
        spec=spec,
        device=device,
        host=memory.host_view(device, write=False),
        first=first,
        last=first + spec.storage_elements * device.element_size(),
    )


def _flat(argument: _Argument) -> Tensor:
    """The argument's memory from its first to its last element, as a flat host tensor."""
    host = argument.host
    return host.as_strided((argument.spec.storage_elements,), (1,), host.storage_offset())


def _overlapping(arguments: Sequence[_Argument]) -> list[list[_Argument]]:
    """Arguments grouped so that only members of one group share memory."""
    groups: list[list[_Argument]] = []
    end = 0
    for argument in sorted(arguments, key=lambda item: (item.first, item.last)):
        if groups and argument.first < end:
            groups[-1].append(argument)
        else:
            groups.append([argument])
        end = max(end, argument.last)
    return groups


def _decode_shared(program: str, group: Sequence[_Argument], tensors: dict[str, Tensor]) -> None:
    """Decode the memory that aliased arguments cover once, and give each its slice of it."""
    names = ", ".join(argument.spec.name for argument in group)
    first = group[0]
    kinds = {(argument.spec.dtype in DL16_DTYPES, TORCH_DTYPES[argument.spec.dtype]) for argument in group}
    if len(kinds) > 1:
        raise SpyreRuntimeError(f"program {program!r}: arguments {names} share memory but not the number format")
    width = first.device.element_size()
    count = (max(argument.last for argument in group) - first.first) // width
    shared = torch.empty((count,), dtype=TORCH_DTYPES[first.spec.dtype], device="cpu")
    for argument in group:
        start, odd = divmod(argument.first - first.first, width)
        if odd:
            raise SpyreRuntimeError(f"program {program!r}: arguments {names} share memory at half an element")
        working = shared[start : start + argument.spec.storage_elements]
        flat = _flat(argument)
        working.copy_(dl16_decode(flat) if argument.spec.dtype in DL16_DTYPES else flat)
        tensors[argument.spec.name] = working


def _write_back(argument: _Argument, working: Tensor) -> None:
    """Encode the elements that belong to the tensor, and only these, into device memory."""
    spec, host = argument.spec, argument.host
    if spec.dtype in DL16_DTYPES:
        working = dl16_encode(working)
    host.copy_(working.as_strided(spec.size, spec.stride, working.storage_offset()))
    memory.mark_written(argument.device)
