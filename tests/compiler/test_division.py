"""Work division: span first, divisors only, sticks whole, K last, and the split model's choices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from spyre_backend.compiler import division, division_matmul
from spyre_backend.compiler.ownership import division_of
from spyre_backend.compiler.settings import using
from spyre_backend.errors import SpyreUnsupported
from spyre_backend.slices import core_digits
from tests.compiler.graphs import Builder, by_name

EXTENTS = st.sampled_from([1, 2, 3, 5, 7, 8, 12, 31, 32, 37, 64, 96, 100, 128, 192, 320, 448, 1000])


def matmul_split(m, n, k, **changes):
    builder = Builder()
    builder.matmul(builder.input(m, k), builder.input(k, n))
    with using(**changes):
        (op,) = by_name(builder.divided(), "batchmatmul")
    return op


@pytest.mark.parametrize(
    ("m", "n", "k", "cores"),
    [(1, 25600, 4096, 25), (8, 25600, 4096, 32), (1, 26624, 4096, 32), (512, 4096, 4096, 32), (1, 64 * 31, 64, 31)],
)
def test_published_matmuls_use_the_cores_that_were_measured(m, n, k, cores):
    op = matmul_split(m, n, k)
    assert math.prod(op.split) == cores
    if m == 1 and k == 4096:
        assert op.split == (1, cores, 1)


def test_the_split_model_does_not_fill_the_rows_first_as_the_greedy_rule_does():
    assert matmul_split(512, 4096, 4096, matmul_split="greedy").split == (32, 1, 1)
    rows, columns, k = matmul_split(512, 4096, 4096).split
    assert rows < 32
    assert columns > 1
    assert k == 1
    small = division_matmul.Problem(
        batch=(), m=64, n=64, k=64, batch_units=(), m_units=64, n_units=1, k_units=1,
        volume=(8192, 8192, 8192), shared=True, least=(1, 1), cores=32,
    )  # fmt: skip
    assert division_matmul.choose(matmul_split(64, 64, 64), (64, 1, 1), (1, 1, 1), 32, small.volume)
    assert {s.k for s in division_matmul.candidates(small)} == {1}


def test_k_takes_only_the_cores_that_the_output_leaves_and_its_slices_are_neighbours():
    op = matmul_split(1, 128, 1024)
    assert op.split == (1, 2, 16)
    digits = [core_digits(op, core) for core in range(4)]
    assert digits == [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 3)]
    slow = matmul_split(1, 128, 1024, k_fast=False)
    assert [core_digits(slow, core) for core in range(3)] == [(0, 0, 0), (0, 1, 0), (0, 0, 1)]


@pytest.mark.parametrize(("n", "fits"), [(151936, False), (152064, True), (64 * 2377, False), (151936 + 64, True)])
def test_span_vectors_of_language_model_heads(n, fits):
    if not fits:
        with pytest.raises(SpyreUnsupported) as caught:
            matmul_split(1, n, 2048)
        assert caught.value.rule == "span-limit"
        return
    op = matmul_split(1, n, 2048)
    assert n // 64 // op.split[1] * 2048 * 128 <= 268_431_360


def test_the_span_is_reduced_before_cores_are_given_to_larger_dims():
    builder = Builder()
    x = builder.input(3, 40000, 4096)
    builder.unary("neg", x)
    (op,) = builder.divided()
    buffer = builder.graph.buffers[x]
    assert all(division.span_bytes(o, op, op.split, buffer) <= 268_431_360 for o in (op.inputs[0], op.output))


@settings(max_examples=60, deadline=None)
@given(st.lists(EXTENTS, min_size=1, max_size=4), st.sampled_from(["neg", "sum", "mean"]), st.sampled_from([32, 7, 1]))
def test_only_divisors_whole_sticks_and_whole_reductions(size, name, cores):
    assume(math.prod(size) <= 2**22)
    builder = Builder()
    x = builder.input(*size)
    result = builder.unary(name, x) if name == "neg" else builder.reduce(name, x)
    if name != "neg":
        builder.unary("abs", result)
    with using(cores=cores):
        ops = builder.divided()
    for op in ops:
        space = division.space_of(builder.graph.buffers, op, cores)
        assert math.prod(op.split) <= cores
        assert all(count % pieces == 0 for count, pieces in zip(space.counts, op.split, strict=True))
        assert set(op.split[len(op.dims) - op.reduced :]) <= {1}


@settings(max_examples=60, deadline=None)
@given(EXTENTS, st.integers(1, 20), st.integers(1, 20), st.sampled_from(["cost", "greedy"]))
def test_matmuls_divide_evenly(m, n_sticks, k_sticks, rule):
    op = matmul_split(m, 64 * n_sticks, 64 * k_sticks, matmul_split=rule)
    assert math.prod(op.split) <= 32
    assert all(n % pieces == 0 for n, pieces in zip((m, n_sticks, k_sticks), op.split, strict=True))
    outputs = division.largest_divisor(m, 32) * division.largest_divisor(n_sticks, 32)
    assert op.split[2] == 1 or outputs <= 16 or math.prod(op.split[:2]) <= 16


def test_a_store_that_begins_inside_a_stick_is_not_divided_across_it():
    builder = Builder()
    first, second = builder.input(4, 32), builder.input(4, 96)
    whole = builder.op("identity", (4, 32), builder.read(first), size=(4, 128))
    op = builder.graph.ops[-1]
    builder.graph.ops[-1] = replace(op, output=replace(op.output, strides=(128, 1)))
    tail = replace(op, dims=(4, 96), inputs=(builder.read(second),))
    builder.graph.ops.append(replace(tail, output=replace(op.output, tensor=whole, strides=(128, 1), offset=32)))
    stores = by_name(builder.divided(), "identity")
    assert [store.split[1] for store in stores] == [1, 1]
    assert stores[1].split[0] == 4


def test_an_elementwise_operation_may_follow_the_matmul_it_reads():
    def divisions(**changes):
        builder = Builder()
        product = builder.matmul(builder.input(128, 768), builder.input(768, 768))
        heads = replace(builder.read(product, (0, None, 1)), strides=(768, 64, 1))
        builder.op("neg", (128, 12, 64), heads)
        with using(**changes):
            product, view = builder.divided()
        buffers = builder.graph.buffers
        return division_of(buffers, product, product.output), division_of(buffers, view, view.inputs[0])

    written, read = divisions(follow=False)
    assert written != read
    written, read = divisions(follow=True)
    assert written == read


def test_cores_are_numbered_like_those_that_wrote_what_is_read():
    builder = Builder()
    x = builder.unary("neg", builder.input(4, 8, 64))
    builder.op("abs", (8, 4, 64), builder.read(x, (1, 0, 2)))
    first, second = builder.divided()
    assert sorted(first.split) == sorted(second.split) == [1, 4, 8]
    buffers = builder.graph.buffers
    assert division_of(buffers, first, first.output) == division_of(buffers, second, second.inputs[0])
    assert first.core_order != second.core_order
