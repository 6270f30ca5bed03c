"""What of a tensor each core holds: ranges, owners and sticks."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spyre_backend.compiler.layouts import stick_layout
from spyre_backend.program import Op, Operand, Program, TensorSpec
from spyre_backend.slices import core_slices, held_sticks, owned_slices, stick_address


def tensor(size, *, dim_order=None, dtype="float16", name="x", kind="input"):
    strides, step = [], 1
    for extent in reversed(size):
        strides.insert(0, step)
        step *= extent
    layout = stick_layout(size, dtype, dim_order=dim_order)
    return TensorSpec(name=name, kind=kind, dtype=dtype, size=tuple(size), stride=tuple(strides), layout=layout)


def access(spec, strides, stick=None):
    return Operand(tensor=spec.name, strides=strides, offset=0, dtype=spec.dtype, stick=stick)


def brute_force_address(spec, offset):
    """The address of the stick whose elements have this host offset, by trying every device coordinate (D2.1)."""
    layout = spec.layout
    for number, place in enumerate(product(*map(range, layout.device_size[:-1]))):
        base = sum(p * s for p, s in zip(place, layout.stride_map[:-1], strict=True) if s > 0)
        inner = layout.stride_map[-1]
        if offset in {base + lane * inner for lane in (range(layout.device_size[-1]) if inner > 0 else (0,))}:
            return number
    raise AssertionError(f"no stick holds element {offset}")


@pytest.mark.parametrize(
    ("size", "order"),
    [
        ((3, 128), None),
        ((5, 64, 128), (0, 2, 1)),
        ((3, 64, 64), (0, 2, 1)),
        ((64, 5), (1, 0)),
        ((2, 3, 4, 128), None),
        ((4, 8), (0, 1, -1)),
    ],
)
def test_stick_addresses_follow_the_stride_map(size, order):
    spec = tensor(size, dim_order=order)
    for offset in range(0, spec.storage_elements, 7):
        assert stick_address(spec.layout, spec, offset) == brute_force_address(spec, offset)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 4))
def test_slices_cover_the_space_once_and_share_no_stick(rows, columns, row_steps, stick_steps):
    size = (rows * row_steps, 64 * columns * stick_steps)
    x, y = tensor(size), tensor(size, name="y", kind="output")
    strides = (size[1], 1)
    op = Op(
        name="neg",
        dims=size,
        reduced=0,
        inputs=(access(x, strides, 1),),
        output=access(y, strides, 1),
        split=(rows, columns),
        core_order=(0, 1),
    )
    program = Program(name="p", release="r", fingerprint="f", tensors=(x, y), ops=(op,), arguments=("x", "y"))
    points: list[tuple[int, int]] = []
    sticks: list[int] = []
    for _, ranges in core_slices(program, op):
        points += product(*ranges)
        sticks += held_sticks(y, op.output, ranges)
    assert sorted(points) == list(product(*map(range, size)))
    assert sorted(sticks) == list(range(y.layout.num_bytes // 128))


def test_the_first_core_along_k_owns_a_result_and_mixed_sticks_stay_whole():
    a, b, c = tensor((4, 128), name="a"), tensor((128, 64), name="b"), tensor((4, 64), name="c", kind="output")
    op = Op(
        name="batchmatmul",
        dims=(4, 64, 128),
        reduced=1,
        inputs=(access(a, (128, 0, 1), 2), access(b, (0, 1, 64), 1)),
        output=access(c, (64, 1, 0), 1),
        split=(2, 1, 2),
        core_order=(2, 1, 0),
    )
    program = Program(name="p", release="r", fingerprint="f", tensors=(a, b, c), ops=(op,), arguments=("a", "b", "c"))
    assert [(core, ranges[0]) for core, ranges in owned_slices(program, op)] == [(0, range(0, 2)), (2, range(2, 4))]
    wide = tensor((4, 128), name="w", dtype="float32", kind="output")
    cast = replace(
        op,
        name="dl16tofp32",
        dims=(4, 128),
        reduced=0,
        inputs=(access(a, (128, 1), 1),),
        output=replace(access(wide, (128, 1), 1)),
        split=(1, 2),
        core_order=(),
    )
    program = replace(program, tensors=(a, wide), ops=(cast,), arguments=("a", "w"))
    assert [ranges[1] for _, ranges in core_slices(program, cast)] == [range(0, 64), range(64, 128)]
