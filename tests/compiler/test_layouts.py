"""Stick layouts against the vectors of D2.2, and the accesses that D2.5 and D6.11 allow."""

from __future__ import annotations

import pytest

from spyre_backend.compiler.graph import Buffer, contiguous_strides
from spyre_backend.compiler.layouts import IllegalAccess, default_stick_dim, layout_of, stick_layout, stick_variable
from spyre_backend.program import Operand

VECTORS = [
    ((5, 100, 150), None, (100, 3, 5, 64), (150, 64, 15000, 1)),
    ((5, 100, 150), (1, 0, 2), (5, 3, 100, 64), (15000, 64, 150, 1)),
    ((1024, 256), None, (4, 1024, 64), (64, 256, 1)),
    ((50, 10, 200), None, (10, 4, 50, 64), (200, 64, 2000, 1)),
    ((4096, 4096), None, (64, 4096, 64), (64, 4096, 1)),
    ((4096, 4096), (1, 0), (64, 4096, 64), (262144, 1, 4096)),
    ((130,), None, (3, 64), (64, 1)),
    ((2, 3, 5, 70), None, (3, 5, 2, 2, 64), (350, 70, 64, 1050, 1)),
    ((), None, (1, 64), (-1, -1)),
]


@pytest.mark.parametrize(("size", "order", "device_size", "stride_map"), VECTORS)
def test_device_size_and_stride_map(size, order, device_size, stride_map):
    layout = stick_layout(size, "float16", dim_order=order)
    assert layout.device_size == device_size
    assert layout.stride_map == stride_map


def test_size_one_dims_have_no_host_stride():
    assert stick_layout((1, 100, 64), "float16").stride_map == (64, 64, -1, 1)


def test_elements_per_stick_follow_the_dtype():
    assert stick_layout((8, 100), "float32").device_size == (4, 8, 32)
    assert stick_layout((8, 100), "int64").device_size == (4, 8, 32)
    assert stick_layout((8, 100), "int8").device_size == (1, 8, 128)


def test_whole_sticks_are_allocated():
    assert stick_layout((1000, 1), "float16").num_bytes == 1000 * 128


@pytest.mark.parametrize("offset", [0, 7])
def test_identity_of_device_and_host_coordinates(offset):
    """host_offset = sum(device_coord * stride_map) reaches each element exactly once (D2.1)."""
    size = (3, 5 + offset, 70)
    layout = stick_layout(size, "float16")
    seen = set()
    for a in range(layout.device_size[0]):
        for b in range(layout.device_size[1]):
            for c in range(layout.device_size[2]):
                for d in range(layout.device_size[3]):
                    if b * 64 + d < size[2]:
                        seen.add(sum(x * s for x, s in zip((a, b, c, d), layout.stride_map, strict=True)))
    assert seen == set(range(size[0] * size[1] * size[2]))


@pytest.mark.parametrize(
    ("size", "stride", "order", "text"),
    [((2, 3), (1,), None, "host_strides"), ((2, 3), None, (0,), "dim_order"), ((2, 3), None, (0, 2), "dim_order")],
)
def test_inconsistent_arguments_are_refused_in_the_device_words(size, stride, order, text):
    with pytest.raises(ValueError, match=f"Incompatible host_size and {text}"):
        stick_layout(size, "float16", stride=stride, dim_order=order)


def buffer(size, dtype="float16", stick="default"):
    made = Buffer(name="x", dtype=dtype, size=size, stride=contiguous_strides(size), external=True)
    made.layout = layout_of(made, default_stick_dim(made) if stick == "default" else stick)
    return made


def access(strides, offset=0):
    return Operand(tensor="x", strides=strides, offset=offset, dtype="float16")


@pytest.mark.parametrize(
    ("heads", "width", "legal"), [(6, 64, True), (3, 128, True), (12, 32, False), (4, 96, False), (24, 16, False)]
)
def test_views_split_the_stick_into_whole_sticks_only(heads, width, legal):
    x = buffer((8, 384))
    operand, dims = access((384, width, 1)), (8, heads, width)
    if legal:
        assert stick_variable(operand, dims, x) == 2
    else:
        with pytest.raises(IllegalAccess) as refused:
            stick_variable(operand, dims, x)
        assert refused.value.rule == "view-stick-split"


@pytest.mark.parametrize(("offset", "legal"), [(0, True), (64, True), (32, False), (1, False)])
def test_slices_begin_on_a_stick(offset, legal):
    x = buffer((8, 256))
    if legal:
        assert stick_variable(access((256, 1), offset), (8, 64), x) == 1
    else:
        with pytest.raises(IllegalAccess) as refused:
            stick_variable(access((256, 1), offset), (8, 64), x)
        assert refused.value.rule == "slice-stick-offset"


def test_a_store_may_begin_inside_a_stick():
    assert stick_variable(access((64, 1), 32), (8, 32), buffer((8, 64)), store=True) == 1


def test_steps_along_the_stick_are_refused():
    with pytest.raises(IllegalAccess):
        stick_variable(access((128, 2)), (8, 64), buffer((8, 128)))


def test_a_flattened_partial_row_is_refused_and_a_whole_one_is_not():
    with pytest.raises(IllegalAccess):
        stick_variable(access((1,)), (8 * 70,), buffer((8, 70)))
    assert stick_variable(access((1,)), (8 * 128,), buffer((8, 128))) == 0


def test_a_transposed_access_keeps_the_stick_of_its_buffer():
    assert stick_variable(access((1, 128)), (128, 64), buffer((64, 128))) == 0


def test_a_sparse_buffer_has_no_stick_variable():
    assert stick_variable(access((8, 1)), (4, 8), buffer((4, 8), stick=None)) is None


def test_a_view_made_on_the_host_keeps_the_stick_of_its_base():
    transposed = Buffer(name="x", dtype="float16", size=(128, 64), stride=(1, 128), external=True)
    assert default_stick_dim(transposed) == 0
