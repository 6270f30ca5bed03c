"""The program: what the compiler hands to the runtime, as plain data.

A :class:`Program` is one bundle (D4.6): a sequence of device operations over named tensors.  It holds no Python
closures, so it can be hashed, cached on disk, diffed, printed and executed by any executor.

Every operation iterates over a rectangle of ``dims`` (the trailing ``reduced`` of them are reduced) and each operand is
an affine access of a tensor: element ``offset + sum(strides[i] * index[i])`` of the tensor's own storage.  Broadcasts
have stride 0, views and slices are strides and offsets; nothing is gathered except by the ``gather`` operation.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import Any, Literal

TensorKind = Literal["input", "output", "inout", "temp"]
Padding = Literal["zero", "garbage"]
Scalar = float | int | bool


@dataclass(frozen=True, kw_only=True, slots=True)
class StickLayout:
    """How a tensor lies in device memory (D2.1): extents of the device dims, and the host stride of each.

    ``device_size[-1]`` is the number of elements in a stick; ``stride_map`` has -1 where a device dim has no host
    counterpart (size-1 or synthetic dims; a sparse stick has -1 last).  ``stick_dim`` is the host dim that runs along
    the stick, or None for a sparse stick (one logical element in each).
    """

    device_size: tuple[int, ...]
    stride_map: tuple[int, ...]
    device_dtype: str
    stick_dim: int | None
    arrangement: str = "STANDARD"

    @property
    def num_bytes(self) -> int:
        """Bytes allocated on the device: whole sticks of 128 bytes, always (D2.1)."""
        count = 128
        for extent in self.device_size[:-1]:
            count *= extent
        return count


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorSpec:
    """A tensor of a program.

    ``dtype`` is the torch dtype's name ("float16"); ``size`` and ``stride`` are in elements as the host sees them.  A
    ``temp`` is contiguous in its own strides and lives only from its first to its last operation: in the scratchpads
    at ``lx_address`` (the same byte address on every core, D4.5), or else in the bundle's region of device memory at
    byte ``hbm_offset``.  Temps whose lives do not meet may share bytes.  What a core holds of a scratchpad resident,
    and who may read it, is defined in :mod:`spyre_backend.slices`.  ``padding`` says what the lanes beyond the logical
    elements of a stick hold.
    """

    name: str
    kind: TensorKind
    dtype: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    layout: StickLayout
    lx_address: int | None = None
    hbm_offset: int | None = None
    padding: Padding = "garbage"

    @property
    def storage_elements(self) -> int:
        """Elements from the first to the last that the strides reach (0 for an empty tensor)."""
        if any(s == 0 for s in self.size):
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.size, self.stride, strict=True))


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """An affine access of ``tensor``; ``strides`` has one entry for each dim of the operation's iteration space.

    ``stick`` is the iteration dim that runs along the stick of the tensor, or None if the access is constant there.
    ``dtype`` repeats the tensor's dtype, so that an operation can be read alone.
    """

    tensor: str
    strides: tuple[int, ...]
    offset: int
    dtype: str
    stick: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Const:
    """A compile-time constant operand.  Infinities are encoded as the merged NaN code by the device (D1.5)."""

    value: Scalar
    dtype: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Where an operation comes from: the aten op, the module path in the model, the user's source line."""

    aten: str | None = None
    module_path: str | None = None
    source_line: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Op:
    """One device operation.

    ``name`` is the device function (D4.7): "add", "batchmatmul", "sum", "ReStickifyOpHBM", ...  The iteration space is
    ``dims``; its last ``reduced`` dims are reduced (matmul: one, K).  ``batchmatmul`` has inputs A (stride 0 on N) and
    B (stride 0 on M) over dims ``(*batch, M, N, K)``.  ``gather`` has inputs (table, index); its table operand has
    stride 0 on nothing that the index replaces: attrs["index_stride"] table elements are skipped for each index value.
    ``scatter`` is the inverse: inputs (values, index), and the output has stride 0 along the dim of the index.
    ``split`` is the number of core slices of each dim (D4.4), 1 where undivided; ``core_order`` numbers the cores along
    the ring: the divided dims from the fastest-varying digit of the core number to the slowest (all dims, last first,
    if empty).  :mod:`spyre_backend.slices` turns both into ranges.  ``LxRelayout`` copies a scratchpad resident over
    the ring into another one that is divided otherwise (D7.6); its division is that of the new tensor, and a dim of
    stride 0 in both operands counts copies: each of its slices gets one.
    """

    name: str
    dims: tuple[int, ...]
    reduced: int
    inputs: tuple[Operand | Const, ...]
    output: Operand
    attrs: dict[str, Scalar | str] = field(default_factory=dict)
    split: tuple[int, ...] = ()
    core_order: tuple[int, ...] = ()
    origin: Origin = Origin()


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """One bundle: tensors by name, operations in execution order, arguments in call order."""

    name: str
    release: str
    fingerprint: str
    tensors: tuple[TensorSpec, ...]
    ops: tuple[Op, ...]
    arguments: tuple[str, ...]

    def tensor(self, name: str) -> TensorSpec:
        """The spec of tensor ``name``; KeyError if there is none."""
        for spec in self.tensors:
            if spec.name == name:
                return spec
        raise KeyError(name)

    def to_json(self) -> str:
        """Canonical JSON: the same program always gives the same text."""
        return json.dumps(self, sort_keys=True, separators=(",", ":"), allow_nan=True, default=_fields)

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON without origins and name: equal programs of all layers share it."""
        text = json.dumps(self, sort_keys=True, separators=(",", ":"), allow_nan=True, default=_content)
        return hashlib.sha256(text.encode()).hexdigest()

    @staticmethod
    def from_json(text: str) -> Program:
        """Inverse of :meth:`to_json`; raises ValueError on text that is not a program."""
        try:
            return _program(json.loads(text))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a serialised Program: {error}") from error


def _fields(item: Any) -> dict[str, Any]:
    """A dataclass of this module as the dictionary that stands for it in JSON."""
    return {name: getattr(item, name) for name in item.__slots__}


def _content(item: Any) -> dict[str, Any]:
    """:func:`_fields` without what does not change the program: its name, and where operations come from."""
    left_out = {Program: "name", Op: "origin"}.get(type(item))
    return {name: getattr(item, name) for name in item.__slots__ if name != left_out}


def _layout(data: dict[str, Any]) -> StickLayout:
    return StickLayout(**{**data, "device_size": tuple(data["device_size"]), "stride_map": tuple(data["stride_map"])})


def _tensor(data: dict[str, Any]) -> TensorSpec:
    fixed = {"size": tuple(data["size"]), "stride": tuple(data["stride"]), "layout": _layout(data["layout"])}
    return TensorSpec(**{**data, **fixed})


def _operand(data: dict[str, Any]) -> Operand | Const:
    if "value" in data:
        return Const(**data)
    return Operand(**{**data, "strides": tuple(data["strides"])})


def _op(data: dict[str, Any]) -> Op:
    output = _operand(data["output"])
    if not isinstance(output, Operand):
        raise TypeError("an output must be a tensor access")
    fixed = {
        "dims": tuple(data["dims"]),
        "inputs": tuple(_operand(item) for item in data["inputs"]),
        "output": output,
        "split": tuple(data["split"]),
        "core_order": tuple(data["core_order"]),
        "origin": Origin(**data["origin"]),
    }
    return Op(**{**data, **fixed})


def _program(data: dict[str, Any]) -> Program:
    fixed = {
        "tensors": tuple(_tensor(item) for item in data["tensors"]),
        "ops": tuple(_op(item) for item in data["ops"]),
        "arguments": tuple(data["arguments"]),
    }
    return Program(**{**data, **fixed})
