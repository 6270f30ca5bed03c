"""Launching programs on device tensors: what Inductor's generated wrapper calls.

A launch is queued on a stream and returns; a worker thread then computes the correction blob of real addresses, copies
it into the program's region and lets the program's prologue patch itself (D3.4, ``csrc/launch.cpp``).  The program
finds its tensors at the patched addresses: the executor decodes them, runs, and encodes what it wrote.  Arguments that
share device memory share working memory, too, so a program sees its own writes through every alias as it would on the
card.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

import torch
from torch import Tensor

from spyre_backend import _C, capabilities
from spyre_backend.compiler import decisions
from spyre_backend.emulator.context import DL16_DTYPES, TORCH_DTYPES
from spyre_backend.emulator.exact import ExactPlan
from spyre_backend.emulator.executors import current_executor
from spyre_backend.emulator.fast import Plan, allocate
from spyre_backend.emulator.numerics import dl16_decode, dl16_encode
from spyre_backend.errors import SpyreRuntimeError, SpyreUnsupported
from spyre_backend.program import Operand, Program, TensorSpec
from spyre_backend.runtime.decoded import DECODED, Source
from spyre_backend.runtime.observed import launching
from spyre_backend.runtime.offsets import STICK_ELEMENTS, refusal_text, stick_coordinate
from spyre_backend.runtime.segments import check_segments
from spyre_backend.runtime.timing import program_microseconds

_INTERNED_MAX: Final = 4096


@dataclass(frozen=True, slots=True)
class _Argument:
    """One argument of a launch in flight, found at the address that the program was patched with.

    ``flat`` is its memory from its first to its last element as the host sees it; ``generation`` the write generation
    of its allocation.
    """

    spec: TensorSpec
    flat: Tensor
    first: int
    generation: int

    @property
    def last(self) -> int:
        return self.first + self.flat.numel() * self.flat.element_size()

    @property
    def writes(self) -> bool:
        return self.spec.kind in ("output", "inout")


class LoadedProgram:
    """A program ready to launch; equal programs (by digest) share one."""

    def __init__(self, program: Program) -> None:
        """Prepare `program`.

        Raises:
            SpyreRuntimeError: the program is malformed.
            SpyreUnsupported: it has more tensors, or larger ones, than the release's segments hold (D1.4).
        """
        release = capabilities.load_as(program.release, program.fingerprint)
        self.program = program
        self.digest = program.digest
        self._specs = tuple(_argument_spec(program, name) for name in program.arguments)
        check_segments(program, self._specs, release)
        self._aligned_inputs = not release.settings.graph_input_mid_stick
        self._honours_offset = release.settings.launch_honours_storage_offset and not release.settings.bug("issue-3770")
        self._fast = self._launcher_for(Plan(program))
        self._exact: _C.Launcher | None = None
        self._timed = False

    def __repr__(self) -> str:
        return f"LoadedProgram({self.program.name!r}, {len(self.program.ops)} ops, digest {self.digest[:12]})"

    @property
    def num_blobs(self) -> int:
        """Correction blobs made so far: as many as launches of this program were in flight at once (D3.4)."""
        return self._fast.num_blobs()

    def launch(self, *args: Tensor) -> None:
        """Queue a run on device tensors in the order of ``program.arguments``, on the current stream of their device.

        Outputs and inouts are written in place.  What fails later surfaces at the next synchronisation.

        Args:
            *args: spyre tensors of one device with exactly the size, stride and dtype of their TensorSpec; any storage
                offset.

        Raises:
            SpyreRuntimeError: an argument does not fit its spec.
        """
        if decisions.active() is not None:
            args = self._bound(args)
        if not self._timed:
            self._fast.set_microseconds(program_microseconds(self.program))
            self._timed = True
        launcher = self._fast if current_executor() == "fast" else self._exact_launcher()
        with launching(self.program):
            fits = launcher.launch(*args)
        if not fits:
            self._refuse(args)

    def _bound(self, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The arguments; inputs that are views whose binding is declined become copies."""
        bound = list(args)
        for index, (spec, arg) in enumerate(zip(self._specs, args, strict=False)):
            offset = int(arg.storage_offset()) if spec.kind == "input" and isinstance(arg, Tensor) else 0
            if offset and not self._binds(spec.name, offset):
                bound[index] = torch.empty_strided(arg.shape, arg.stride(), dtype=arg.dtype, device=arg.device)
                bound[index].copy_(arg)
        return tuple(bound)

    def _binds(self, name: str, offset: int) -> bool:
        what = f"{self.program.name} binds {name}, which begins {offset} elements into its storage"
        return decisions.take("binding", f"{self.digest[:12]}.{name}.{offset}", lambda: what)

    def _launcher_for(self, plan: Plan | ExactPlan) -> _C.Launcher:
        return _C.Launcher(
            self.program.name,
            [_native_spec(spec, self._aligned_inputs) for spec in self._specs],
            _Execution(self.program, plan, self._specs) if self.program.ops else None,
            honours_offset=self._honours_offset,
        )

    def _exact_launcher(self) -> _C.Launcher:
        """The launcher of the exact executor, made when it is first wanted."""
        if self._exact is None:
            self._exact = self._launcher_for(ExactPlan(self.program))
            self._exact.set_microseconds(program_microseconds(self.program))
        return self._exact

    def _refuse(self, args: tuple[object, ...]) -> NoReturn:
        """Say which argument does not fit."""
        name = self.program.name
        if len(args) != len(self._specs):
            raise SpyreRuntimeError(
                f"program {name!r} takes {len(self._specs)} arguments "
                f"({', '.join(self.program.arguments)}), got {len(args)}"
            )
        for position, (arg, spec) in enumerate(zip(args, self._specs, strict=True)):
            tensor = _check(name, position, arg, spec)
            if self._aligned_inputs and stick_coordinate(tensor):
                raise _misaligned(tensor, spec)
        devices = ", ".join(sorted({str(arg.device) for arg in args if isinstance(arg, Tensor)}))
        raise SpyreRuntimeError(f"program {name!r} got arguments on {devices}; a program runs on one device")


class _Execution:
    """What a launch computes, on a worker thread, once its addresses are patched."""

    def __init__(self, program: Program, plan: Plan | ExactPlan, specs: tuple[TensorSpec, ...]) -> None:
        self._name = program.name
        self._plan = plan
        self._specs = specs
        self._tables = _gather_tables(program)

    def __call__(self, views: list[Tensor], addresses: list[int], generations: list[int]) -> None:
        arguments = [_Argument(*item) for item in zip(self._specs, views, addresses, generations, strict=True)]
        with torch.no_grad():
            tensors, fresh = self._working_tensors(arguments)
            self._plan.run(tensors, fresh)
            for argument in arguments:
                if argument.writes and argument.flat.numel():
                    _write_back(argument, tensors[argument.spec.name])

    def _working_tensors(self, arguments: Sequence[_Argument]) -> tuple[dict[str, Tensor], frozenset[str]]:
        """Decoded memory of each argument, and the names of the outputs that the executor may allocate itself."""
        tensors: dict[str, Tensor] = {}
        fresh: set[str] = set()
        for group in _overlapping(arguments):
            first = group[0]
            if len(group) > 1 and any(argument.writes for argument in group):
                _decode_shared(self._name, group, tensors)
            elif first.spec.kind == "output":
                fresh.add(first.spec.name)
                if not first.flat.numel():
                    tensors[first.spec.name] = allocate(first.spec, filled=True)
            else:
                for argument in group:
                    tensors[argument.spec.name] = self._decode(argument)
        return tensors, frozenset(fresh)

    def _decode(self, argument: _Argument) -> Tensor:
        spec, flat = argument.spec, argument.flat
        if spec.name in self._tables:
            return flat
        if spec.kind == "input" and spec.dtype in DL16_DTYPES:
            source = Source(argument.first, spec.storage_elements, spec.dtype, argument.generation)
            return DECODED.get(source, lambda: dl16_decode(flat))
        working = dl16_decode(flat) if spec.dtype in DL16_DTYPES else flat.to(TORCH_DTYPES[spec.dtype])
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


def _native_spec(spec: TensorSpec, aligned: bool) -> _C.ArgumentSpec:
    dtype = getattr(torch, spec.dtype)
    return _C.ArgumentSpec(
        sizes=list(spec.size),
        strides=list(spec.stride),
        dtype=dtype,
        writes=spec.kind in ("output", "inout"),
        elements=spec.storage_elements,
        per_stick=STICK_ELEMENTS.get(dtype, 0) if aligned else 0,
    )


def _check(program: str, position: int, arg: object, spec: TensorSpec) -> Tensor:
    """The argument, if the program was compiled for it."""
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
    elif arg.untyped_storage().nbytes() < (arg.storage_offset() + spec.storage_elements) * arg.element_size():
        problem = f"has lost its memory: its storage was resized to {arg.untyped_storage().nbytes()} bytes"
    else:
        return arg
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
    width = first.flat.element_size()
    count = (max(argument.last for argument in group) - first.first) // width
    shared = torch.empty((count,), dtype=TORCH_DTYPES[first.spec.dtype], device="cpu")
    for argument in group:
        start, odd = divmod(argument.first - first.first, width)
        if odd:
            raise SpyreRuntimeError(f"program {program!r}: arguments {names} share memory at half an element")
        working = shared[start : start + argument.spec.storage_elements]
        flat = argument.flat
        working.copy_(dl16_decode(flat) if argument.spec.dtype in DL16_DTYPES else flat)
        tensors[argument.spec.name] = working


def _write_back(argument: _Argument, working: Tensor) -> None:
    """Encode the elements that belong to the tensor, and only these, into device memory."""
    spec = argument.spec
    if spec.dtype in DL16_DTYPES:
        working = dl16_encode(working)
    host = argument.flat.as_strided(spec.size, spec.stride)
    host.copy_(working.as_strided(spec.size, spec.stride, working.storage_offset()))
