"""Restickify placement: the cost of D7.3, graphs on which the operation-by-operation rule moves too much, and search
against brute force."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spyre_backend.compiler import restickify
from spyre_backend.compiler.graph import Buffer, Graph, contiguous_strides, operands
from spyre_backend.compiler.restickify_choices import Choices
from spyre_backend.compiler.restickify_cost import restickify_ps
from spyre_backend.compiler.restickify_search import _Walk, by_rule, search
from spyre_backend.errors import SpyreUnsupported
from spyre_backend.program import Const, Op, Operand


class Sketch:
    """Builds small graphs over one shape: tensors by name, a "t" after a name reads it transposed."""

    def __init__(self, *size: int) -> None:
        self.size = size
        self.graph = Graph(name="0")

    def input(self, name: str, size: tuple[int, ...] | None = None) -> None:
        extent = size or self.size
        self.graph.buffers[name] = Buffer(
            name=name, dtype="float16", size=extent, stride=contiguous_strides(extent), external=True
        )

    def read(self, name: str) -> Operand:
        transposed = name.endswith("'")
        buffer = self.graph.buffers[name.rstrip("'")]
        strides = tuple(s if n > 1 else 0 for s, n in zip(buffer.stride, buffer.size, strict=True))
        if transposed:
            strides = (*strides[:-2], strides[-1], strides[-2])
        return Operand(tensor=buffer.name, strides=strides, offset=0, dtype="float16")

    def op(self, name: str, output: str, *inputs: str, size: tuple[int, ...] | None = None) -> None:
        extent = size or self.size
        self.graph.buffers[output] = Buffer(
            name=output, dtype="float16", size=extent, stride=contiguous_strides(extent), external=False
        )
        read = tuple(self.read(i) for i in inputs) or (Const(value=1.0, dtype="float16"),)
        self.graph.ops.append(Op(name=name, dims=extent, reduced=0, inputs=read, output=self.read(output)))

    def matmul(self, output: str, a: str, b: str, m: int, n: int, k: int) -> None:
        self.graph.buffers[output] = Buffer(name=output, dtype="float16", size=(m, n), stride=(n, 1), external=False)
        left, right = self.read(a), self.read(b)
        sides = (
            Operand(tensor=left.tensor, strides=(left.strides[0], 0, left.strides[1]), offset=0, dtype="float16"),
            Operand(tensor=right.tensor, strides=(0, right.strides[1], right.strides[0]), offset=0, dtype="float16"),
        )
        target = Operand(tensor=output, strides=(n, 1, 0), offset=0, dtype="float16")
        self.graph.ops.append(Op(name="batchmatmul", dims=(m, n, k), reduced=1, inputs=sides, output=target))

    def column_sum(self, output: str, source: str) -> None:
        """Sum over dim 1."""
        rows = self.size[0]
        self.graph.buffers[output] = Buffer(name=output, dtype="float16", size=(rows,), stride=(1,), external=False)
        target = Operand(tensor=output, strides=(1, 0), offset=0, dtype="float16")
        self.graph.ops.append(Op(name="sum", dims=self.size, reduced=1, inputs=(self.read(source),), output=target))


def square_chain() -> tuple[Graph, frozenset[str]]:
    sketch = Sketch(128, 128)
    for name in "xyz":
        sketch.input(name)
    sketch.op("add", "t", "x", "y'")
    sketch.op("add", "u", "t", "z'")
    sketch.matmul("o", "u'", "y", 128, 128, 128)
    return sketch.graph, frozenset({"o"})


def shared_early() -> tuple[Graph, frozenset[str]]:
    """Three functions of x are wanted along the other stick: x moves once, not each of them."""
    sketch = Sketch(128, 256)
    sketch.input("x")
    sketch.input("w", (128, 64))
    for i, name in enumerate(("a", "b", "c")):
        sketch.op(("exp", "neg", "abs")[i], name, "x")
        sketch.matmul(f"o{i}", f"{name}'", "w", 256, 64, 128)
    return sketch.graph, frozenset({"o0", "o1", "o2"})


def moves_of(graph: Graph) -> int:
    return sum(op.name == "ReStickifyOpHBM" for op in graph.ops)


@pytest.mark.parametrize(("build", "greedy", "best"), [(square_chain, 3, 1), (shared_early, 3, 1)])
def test_search_moves_less_than_the_rule(build, greedy, best):
    graph, exported = build()
    assert by_rule(Choices(graph, exported)).cost[1] == greedy
    notes = restickify.place(graph, exported)
    assert moves_of(graph) == best
    assert notes[0].startswith(f"{best} move")
    assert f"operation by operation: {greedy} moves" in notes[0]
    assert "optimum" in notes[0]
    assert len(notes) == 1 + best
    check_sticks(graph)


def check_sticks(graph: Graph) -> None:
    """Every operation of a placed graph obeys D2.4 with the layouts that its tensors have."""
    from spyre_backend.compiler.layouts import stick_variable
    from spyre_backend.compiler.restickify_options import output_dims

    for op in graph.ops:
        reads = [(o, stick_variable(o, op.dims, graph.buffers[o.tensor])) for o in operands(op)]
        out = stick_variable(op.output, output_dims(op), graph.buffers[op.output.tensor], store=True)
        assert all(o.stick == stick for o, stick in reads)
        assert op.output.stick == out
        if op.name == "batchmatmul":
            assert [stick for _, stick in reads] == [len(op.dims) - 1, len(op.dims) - 2]
            assert out == len(op.dims) - 2
        elif op.reduced:
            (_, stick), kept = reads[0], len(op.dims) - op.reduced
            assert out == (None if stick is None or stick >= kept else stick)
        elif op.name not in ("ReStickifyOpHBM", "identity"):
            for operand, stick in reads:
                constant = out is None or operand.strides[out] == 0 or op.dims[out] == 1
                assert stick == out or (stick is None and constant)


def test_a_moved_copy_is_not_used_after_its_tensor_changed():
    sketch = Sketch(128, 128)
    for name in "xy":
        sketch.input(name)
    sketch.matmul("o", "x'", "y", 128, 128, 128)
    add = Op(
        name="add", dims=(128, 128), reduced=0, inputs=(sketch.read("x"), sketch.read("y")), output=sketch.read("x")
    )
    sketch.graph.ops.append(add)
    sketch.matmul("p", "x'", "y", 128, 128, 128)
    restickify.place(sketch.graph, frozenset({"o", "p"}))
    sources = [next(operands(op)).tensor for op in sketch.graph.ops if op.name == "ReStickifyOpHBM"]
    assert sources == ["x", "x"]


def test_a_result_that_must_leave_in_the_default_layout_serves_readers_of_the_other():
    """t is computed along d0, written to its default layout, and read along d0 again without another move."""
    sketch = Sketch(128, 128)
    for name in "xyw":
        sketch.input(name)
    sketch.op("add", "t", "x'", "y'")
    sketch.matmul("o", "t'", "w", 128, 128, 128)
    restickify.place(sketch.graph, frozenset({"t", "o"}))
    assert moves_of(sketch.graph) == 1
    check_sticks(sketch.graph)


def test_requests_of_single_sticks_cost_more_than_bursts():
    burst = restickify_ps((4096, 4096), 64, 1, 0)
    payload = 2 * 4096 * 4096
    assert burst == round(1000 * 2 * payload / 116)
    scattered = restickify_ps((64, 64, 64, 64), 64, 3, 0)
    assert scattered == round(1000 * (2 * payload / 116 + payload / 128 * 3.75 - payload / 150))


def test_a_sparse_side_counts_a_stick_for_each_element():
    assert restickify_ps((640,), 64, None, 0) > 30 * restickify_ps((640,), 64, 0, 0)


def brute_force(choices: Choices) -> int | None:
    """The least time of all combinations of options, nothing dropped on the way."""
    choices.widen()
    walk = _Walk(choices)
    states = [walk.start()]
    for index in range(len(choices.ops)):
        after = []
        for state in states:
            try:
                after += [walk.step(index, state, option) for option in choices.options(index, state.sticks)]
            except SpyreUnsupported:
                continue
        states = after
    return min((state.cost[0] for state in states), default=None)


@st.composite
def graphs(draw):
    """Up to five operations over a 128 x 64 shape and its transpose, vectors, sums and matmuls among them."""
    sketch = Sketch(64, 64)
    sizes = st.sampled_from([(64, 64), (64, 1), (1, 64)])
    known = []
    for i in range(draw(st.integers(1, 3))):
        sketch.input(f"x{i}", draw(sizes) if i else None)
        known.append(f"x{i}")
    for i in range(draw(st.integers(1, 5))):
        square = [k for k in known if sketch.graph.buffers[k].size == (64, 64)]
        kind = draw(st.sampled_from(["unary", "binary", "binary", "matmul", "copy"]))
        reads = [draw(st.sampled_from(known if n else square)) + draw(st.sampled_from(["", "'"])) for n in range(2)]
        if kind == "matmul":
            pair = [draw(st.sampled_from(square)) + draw(st.sampled_from(["", "'"])) for _ in range(2)]
            sketch.matmul(f"t{i}", *pair, 64, 64, 64)
        elif kind == "binary":
            sketch.op("add", f"t{i}", *reads)
        else:
            sketch.op("identity" if kind == "copy" else "exp", f"t{i}", reads[0])
        known.append(f"t{i}")
    exported = draw(st.sets(st.sampled_from([k for k in known if k.startswith("t")])))
    return sketch.graph, frozenset({known[-1], *exported})


def refused_by_rule(graph: Graph, exported: frozenset[str]) -> str | None:
    try:
        by_rule(Choices(graph, exported))
    except SpyreUnsupported as refusal:
        return refusal.rule
    return None


@settings(max_examples=150, deadline=None)
@given(drawn=graphs())
def test_search_finds_the_optimum_and_never_refuses_what_the_rule_takes(drawn):
    graph, exported = drawn
    refused = refused_by_rule(graph, exported)
    if refused is not None:
        with pytest.raises(SpyreUnsupported) as caught:
            search(Choices(graph, exported))
        assert caught.value.rule == refused
        return
    rule = by_rule(Choices(graph, exported))
    plan = search(Choices(graph, exported))
    assert plan.exact
    assert plan.cost[0] == brute_force(Choices(graph, exported))
    assert plan.cost[0] <= rule.cost[0]
    narrow = search(Choices(graph, exported), width=1)
    assert plan.cost[0] <= narrow.cost[0] <= rule.cost[0]
    restickify.place(graph, exported)
    check_sticks(graph)
    assert moves_of(graph) == plan.cost[1]


def test_the_same_graph_is_placed_the_same_way_again():
    texts = []
    for _ in range(2):
        graph, exported = shared_early()
        restickify.place(graph, exported)
        texts.append(graph.describe())
    assert len(set(texts)) == 1


def test_sums_over_the_stick_are_sparse_and_broadcast_back_without_a_move():
    sketch = Sketch(8, 128)
    sketch.input("x")
    sketch.column_sum("s", "x")
    back = Operand(tensor="s", strides=(1, 0), offset=0, dtype="float16")
    sketch.op("exp", "o", "x")
    sketch.graph.ops[-1] = Op(
        name="sub", dims=(8, 128), reduced=0, inputs=(sketch.read("x"), back), output=sketch.read("o")
    )
    assert restickify.place(sketch.graph, frozenset({"o"})) == []
    layout = sketch.graph.buffers["s"].layout
    assert (layout.stick_dim, layout.device_size, layout.stride_map[-1]) == (None, (1, 8, 64), -1)
    check_sticks(sketch.graph)


def test_all_permutations_of_a_sum_of_operands_cost_the_same():
    """x + y' + z' moves x alone, in whatever order the operands come."""
    costs = set()
    for order in itertools.permutations(["x", "y'", "z'"]):
        sketch = Sketch(128, 128)
        for name in "xyzw":
            sketch.input(name)
        sketch.op("add", "t", order[0], order[1])
        sketch.op("add", "u", "t", order[2])
        sketch.matmul("o", "u'", "w", 128, 128, 128)
        costs.add(search(Choices(sketch.graph, frozenset({"o"}))).cost[:2])
    assert len(costs) == 1
    assert costs.pop()[1] == 1


def test_a_reduction_that_leaves_the_graph_does_so_in_the_default_layout_or_sparse():
    """x[M, N, P] summed over N into [P, M]: P runs along the stick, the tensor that leaves has M there."""
    graph = Graph(name="0")
    graph.buffers["x"] = Buffer(name="x", dtype="float16", size=(8, 4, 64), stride=(256, 64, 1), external=True)
    graph.buffers["s"] = Buffer(name="s", dtype="float16", size=(64, 8), stride=(8, 1), external=False)
    read = Operand(tensor="x", strides=(1, 256, 64), offset=0, dtype="float16")
    target = Operand(tensor="s", strides=(8, 1, 0), offset=0, dtype="float16")
    graph.ops.append(Op(name="sum", dims=(64, 8, 4), reduced=1, inputs=(read,), output=target))
    restickify.place(graph, frozenset({"s"}))
    assert graph.buffers["s"].layout.stick_dim == 1
    assert [op.name for op in graph.ops] == ["sum", "ReStickifyOpHBM"]
    check_sticks(graph)
