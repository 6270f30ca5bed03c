"""Builds small programs by hand, for the executor's tests."""

from __future__ import annotations

from typing import Any

from spyre_backend.program import Const, Op, Operand, Origin, Program, StickLayout, TensorSpec

LAYOUT = StickLayout(device_size=(1, 64), stride_map=(64, 1), device_dtype="SEN169_FP16", stick_dim=0)
ORIGIN = Origin(aten="aten.test.default", module_path="encoder.layer.0", source_line="model.py:7")


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides."""
    strides: list[int] = []
    step = 1
    for extent in reversed(size):
        strides.insert(0, step)
        step *= extent
    return tuple(strides)


def spec(
    name: str, kind: Any, size: tuple[int, ...], dtype: str = "float16", stride: tuple[int, ...] | None = None
) -> TensorSpec:
    """A tensor, row-major unless `stride` says otherwise."""
    return TensorSpec(
        name=name,
        kind=kind,
        dtype=dtype,
        size=size,
        stride=contiguous(size) if stride is None else stride,
        layout=LAYOUT,
    )


def operand(tensor: TensorSpec, strides: tuple[int, ...], offset: int = 0) -> Operand:
    """An access of `tensor`."""
    return Operand(tensor=tensor.name, strides=strides, offset=offset, dtype=tensor.dtype)


def op(
    name: str,
    dims: tuple[int, ...],
    inputs: tuple[Operand | Const, ...],
    output: Operand,
    reduced: int = 0,
    **attrs: Any,
) -> Op:
    """An operation with a known origin."""
    return Op(name=name, dims=dims, reduced=reduced, inputs=inputs, output=output, attrs=attrs, origin=ORIGIN)


def program(tensors: tuple[TensorSpec, ...], *ops: Op, release: str = "2026.07", name: str = "test") -> Program:
    """A program whose arguments are its tensors that are not temps, in order."""
    return Program(
        name=name,
        release=release,
        fingerprint="test",
        tensors=tensors,
        ops=ops,
        arguments=tuple(t.name for t in tensors if t.kind != "temp"),
    )


def unary(name: str, count: int, dtype: str = "float16", out_dtype: str | None = None, **attrs: Any) -> Program:
    """`y = name(x)` over one dim."""
    x, y = spec("x", "input", (count,), dtype), spec("y", "output", (count,), out_dtype or dtype)
    return program((x, y), op(name, (count,), (operand(x, (1,)),), operand(y, (1,)), **attrs))
