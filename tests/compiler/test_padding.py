"""What padding lanes hold after each kind of operation, and which reductions mask them."""

from __future__ import annotations

import pytest

from spyre_backend.compiler import restickify
from spyre_backend.compiler.graph import Buffer, Graph, contiguous_strides
from spyre_backend.program import Const, Op, Operand

WIDTH = 70
"""Six lanes of the second stick are used, 58 are padding."""


class Chain:
    """A graph in which every operation reads earlier tensors of one shape."""

    def __init__(self, *size: int) -> None:
        self.size = size
        self.graph = Graph(name="0")

    def add(self, name: str, size: tuple[int, ...], *, external: bool = False) -> Operand:
        self.graph.buffers[name] = Buffer(
            name=name, dtype="float16", size=size, stride=contiguous_strides(size), external=external
        )
        return Operand(tensor=name, strides=contiguous_strides(size), offset=0, dtype="float16")

    def op(self, function: str, output: str, *inputs: str | float, **attrs: float) -> None:
        target = self.add(output, self.size)
        items = tuple(
            Operand(tensor=i, strides=target.strides, offset=0, dtype="float16")
            if isinstance(i, str)
            else Const(value=i, dtype="float16")
            for i in inputs
        )
        self.graph.ops.append(Op(name=function, dims=self.size, reduced=0, inputs=items, output=target, attrs=attrs))

    def reduce(self, function: str, output: str, source: str, offset: int = 0, width: int | None = None) -> None:
        """Over the last dim, or ``width`` of it from ``offset`` on."""
        rows, columns = self.size
        self.add(output, (rows,))
        target = Operand(tensor=output, strides=(1, 0), offset=0, dtype="float16")
        read = Operand(tensor=source, strides=(columns, 1), offset=offset, dtype="float16")
        dims = (rows, columns if width is None else width)
        self.graph.ops.append(Op(name=function, dims=dims, reduced=1, inputs=(read,), output=target))

    def place(self, *exported: str) -> Graph:
        restickify.place(self.graph, frozenset(exported))
        return self.graph


def zeros() -> Chain:
    chain = Chain(8, WIDTH)
    chain.add("x", (8, WIDTH), external=True)
    chain.op("fill", "z", 0.0)
    return chain


@pytest.mark.parametrize(
    ("function", "inputs", "attrs", "expected"),
    [
        ("exp", ("z",), {}, "garbage"),
        ("sigmoid", ("z",), {}, "garbage"),
        ("reciprocal", ("z",), {}, "garbage"),
        ("equal", ("z", "z"), {}, "garbage"),
        ("neg", ("z",), {}, "zero"),
        ("relufwd", ("z",), {}, "zero"),
        ("add", ("z", "z"), {}, "zero"),
        ("add", ("z", 1.0), {}, "garbage"),
        ("add", ("z", "x"), {}, "garbage"),
        ("mul", ("z", "z"), {}, "zero"),
        ("mul", ("z", "x"), {}, "garbage"),
        ("realdiv", ("z", 2.0), {}, "zero"),
        ("realdiv", ("z", 0.0), {}, "garbage"),
        ("realdiv", ("z", "z"), {}, "garbage"),
        ("clip", ("z",), {"min": -1.0, "max": 1.0}, "zero"),
        ("clip", ("z",), {"min": 1.0}, "garbage"),
        ("where3", ("x", "z", "z"), {}, "zero"),
        ("where3", ("z", "x", "z"), {}, "garbage"),
        ("fill", (0.0,), {}, "zero"),
        ("fill", (1.0,), {}, "garbage"),
    ],
)
def test_content_after_an_operation(function, inputs, attrs, expected):
    chain = zeros()
    chain.op(function, "t", *inputs, **attrs)
    graph = chain.place("t")
    assert graph.buffers["t"].padding == expected
    assert graph.buffers["x"].padding == "garbage"


def test_whole_sticks_have_no_padding():
    chain = Chain(8, 128)
    chain.add("x", (8, 128), external=True)
    chain.op("exp", "t", "x")
    chain.reduce("sum", "s", "t")
    graph = chain.place("s")
    assert graph.buffers["t"].padding == "garbage", "nothing to say about lanes that do not exist"
    assert "masked_lanes" not in graph.ops[-1].attrs
    assert graph.buffers["s"].padding == "garbage", "a sparse stick holds one element, the other lanes are unknown"


@pytest.mark.parametrize(
    ("function", "source", "lanes"),
    [("sum", "x", 58), ("sum", "z", 0), ("max", "x", 58), ("max", "z", 58), ("mean", "e", 58), ("any", "z", 0)],
)
def test_reductions_along_the_stick_mask_what_is_not_their_identity(function, source, lanes):
    chain = zeros()
    chain.op("exp", "e", "z")
    chain.reduce(function, "s", source)
    graph = chain.place("s")
    assert graph.ops[-1].attrs.get("masked_lanes", 0) == lanes


def test_a_slice_that_ends_before_its_tensor_masks_the_elements_behind_it():
    chain = Chain(8, 128)
    chain.op("fill", "z", 0.0)
    chain.reduce("sum", "s", "z", offset=64, width=10)
    graph = chain.place("s")
    assert graph.ops[-1].attrs["masked_lanes"] == 54


def test_other_reductions_need_no_mask():
    chain = zeros()
    chain.add("s", (WIDTH,))
    target = Operand(tensor="s", strides=(1, 0), offset=0, dtype="float16")
    read = Operand(tensor="z", strides=(1, WIDTH), offset=0, dtype="float16")
    chain.graph.ops.append(Op(name="sum", dims=(WIDTH, 8), reduced=1, inputs=(read,), output=target))
    graph = chain.place("s")
    assert "masked_lanes" not in graph.ops[-1].attrs
    assert graph.buffers["s"].padding == "zero"


def test_a_tensor_written_in_pieces_has_unknown_padding():
    chain = zeros()
    chain.add("c", (16, WIDTH))
    for half in range(2):
        target = Operand(tensor="c", strides=(WIDTH, 1), offset=half * 8 * WIDTH, dtype="float16")
        read = Operand(tensor="z", strides=(WIDTH, 1), offset=0, dtype="float16")
        chain.graph.ops.append(Op(name="identity", dims=(8, WIDTH), reduced=0, inputs=(read,), output=target))
    assert chain.place("c").buffers["c"].padding == "garbage"


def test_restickified_tensors_are_padded_as_the_release_says():
    chain = Chain(70, 70)
    chain.add("x", (70, 70), external=True)
    chain.op("neg", "t", "x")
    read = Operand(tensor="x", strides=(1, 70), offset=0, dtype="float16")
    add = chain.graph.ops[-1]
    chain.graph.ops[-1] = Op(name="add", dims=(70, 70), reduced=0, inputs=(add.inputs[0], read), output=add.output)
    graph = chain.place("t")
    moved = next(op.output.tensor for op in graph.ops if op.name == "ReStickifyOpHBM")
    assert graph.buffers[moved].padding == "zero"
