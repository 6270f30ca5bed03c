"""Scratchpad planning: what stays, where, and why the rest does not; every plan is walked core by core."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spyre_backend import capabilities
from spyre_backend.compiler import lx_solvers, scratchpad_cpsat
from spyre_backend.compiler.lx_solvers import Group, Item, collides, greedy, saved_bytes
from spyre_backend.compiler.settings import SettingError, using
from spyre_backend.emulator.exact import ExactPlan
from spyre_backend.emulator.fast import Plan
from spyre_backend.emulator.numerics import dl16_round
from spyre_backend.errors import SpyreUnsupported
from tests.compiler.graphs import Builder, by_name
from tests.compiler.plan_checker import check_program

CAPACITY = 1_625_344


def resident(program):
    return {spec.name: spec.lx_address for spec in program.tensors if spec.lx_address is not None}


def softmax(builder, x):
    shifted = builder.op("sub", builder.size(x), builder.read(x), builder.read(builder.reduce("max", x)))
    raised = builder.unary("exp", shifted)
    return builder.op("realdiv", builder.size(x), builder.read(raised), builder.read(builder.reduce("sum", raised)))


def built(make, **changes):
    builder = Builder()
    make(builder)
    with using(**changes):
        result = builder.build()
    check_program(result.program, CAPACITY)
    return result


def test_softmax_keeps_everything_in_place_and_clones_its_input():
    def make(builder):
        softmax(builder, builder.input(512, 1024))

    off = built(make, lx_planning=False).program
    assert not resident(off)
    plain = built(make, lx_in_place=False, lx_input_clones=False).program
    assert len(resident(plain)) == 4
    assert len(set(resident(plain).values())) > 1
    in_place = built(make, lx_input_clones=False)
    kept = resident(in_place.program)
    sub, exp = (by_name(in_place.program.ops, name)[0].output.tensor for name in ("sub", "exp"))
    assert kept[sub] == kept[exp]
    assert any(f"in place of {sub}" in line for line in in_place.scratchpad_notes)
    cloned = built(make).program
    (clone,) = by_name(cloned.ops, "identity")
    assert clone.output.tensor in resident(cloned)
    readers = [op for op in cloned.ops if clone.output.tensor in {getattr(i, "tensor", None) for i in op.inputs}]
    assert [op.name for op in readers] == ["max", "sub"]
    assert clone.inputs[0].tensor == "arg0"


def test_a_relayout_joins_operations_that_divide_differently():
    def make(builder):
        product = builder.matmul(builder.input(128, 768), builder.input(768, 768))
        builder.unary("relufwd", builder.unary("neg", product))

    moved = built(make).program
    (copy,) = by_name(moved.ops, "LxRelayout")
    assert copy.split == by_name(moved.ops, "neg")[0].split
    assert copy.output.tensor in resident(moved)
    through_memory = built(make, lx_relayout=False)
    assert not by_name(through_memory.program.ops, "LxRelayout")
    assert any("batchmatmul" not in line and "divided into" in line for line in through_memory.scratchpad_notes)


def test_an_operand_that_many_cores_read_arrives_in_copies():
    def make(builder):
        x = builder.unary("neg", builder.input(128, 768))
        builder.matmul(x, builder.input(768, 1024))

    program = built(make).program
    (copy,) = by_name(program.ops, "LxRelayout")
    assert 0 in copy.output.strides
    assert copy.split == by_name(program.ops, "batchmatmul")[0].split


def test_both_sides_of_a_product_with_itself_find_their_part():
    def make(builder):
        x = builder.unary("neg", builder.input(256, 256))
        builder.matmul(x, x)

    program = built(make).program
    rows, columns = by_name(program.ops, "LxRelayout")
    (product,) = by_name(program.ops, "batchmatmul")
    assert [operand.tensor for operand in product.inputs] == [rows.output.tensor, columns.output.tensor]


def test_what_device_memory_operations_touch_does_not_stay():
    def make(builder):
        x = builder.unary("neg", builder.input(128, 192))
        builder.op("add", (192, 128), builder.read(x, (1, 0)), builder.read(builder.input(192, 128)))

    result = built(make)
    assert by_name(result.program.ops, "ReStickifyOpHBM")
    assert any("works on device memory" in line for line in result.scratchpad_notes)


def test_what_is_too_large_or_read_in_part_does_not_stay():
    def large(builder):
        builder.unary("abs", builder.unary("neg", builder.input(32 * 1024, 1024)))

    assert any("bytes on one core" in line for line in built(large).scratchpad_notes)

    def part(builder):
        x = builder.unary("neg", builder.input(64, 256))
        builder.op("abs", (32, 256), builder.read(x, offset=32 * 256))

    assert any("reads a part of it" in line for line in built(part).scratchpad_notes)


def test_device_memory_of_dead_temporaries_is_used_again():
    def make(builder):
        x = builder.input(256, 256)
        for _ in range(6):
            x = builder.unary("neg", x)

    def region(program):
        return max(s.hbm_offset + s.layout.num_bytes for s in program.tensors if s.hbm_offset is not None)

    one = 256 * 256 * 2
    assert region(built(make, lx_planning=False).program) == 2 * one
    assert region(built(make, lx_planning=False, hbm_pool=False).program) == 5 * one


def test_more_temporaries_than_the_pool_holds_are_refused():
    builder = Builder()
    x = builder.unary("neg", builder.unary("abs", builder.input(64 * 1024, 8192)))
    for _ in range(16):
        builder.unary("abs", x)
    late = [op.output.tensor for op in builder.graph.ops[2:]]
    for name in late:
        x = builder.add(x, name)
    with pytest.raises(SpyreUnsupported) as caught:
        builder.build()
    assert caught.value.rule == "pool-limit"


STEPS = st.lists(
    st.tuples(st.sampled_from(["neg", "transpose", "matmul", "softmax", "row", "again"]), st.integers(0, 5)),
    min_size=2,
    max_size=7,
)


@settings(max_examples=25, deadline=None)
@given(STEPS, st.sampled_from([(64, 64), (128, 192), (96, 128), (3, 320)]), st.sampled_from([32, 6]), st.booleans())
def test_no_core_reads_what_it_does_not_hold(steps, size, cores, follow):
    builder = Builder()
    known = [builder.input(*size)]
    for kind, pick in steps:
        x = known[pick % len(known)]
        rows, columns = builder.size(x)
        if kind == "transpose" and rows % 64 == 0:
            known.append(builder.op("neg", (columns, rows), builder.read(x, (1, 0))))
        elif kind == "matmul" and columns % 64 == 0:
            known.append(builder.matmul(x, builder.input(columns, 64 * (1 + pick))))
        elif kind == "softmax":
            known.append(softmax(builder, x))
        elif kind == "row":
            known.append(builder.op("add", (rows, columns), builder.read(x), builder.read(builder.input(1, columns))))
        elif kind == "again":
            known.append(builder.add(x, x))
        else:
            known.append(builder.unary("neg", x))
    with using(cores=cores, follow=follow):
        program = builder.build().program
    check_program(program, CAPACITY, cores)
    fast, exact = (run(executor(program), program) for executor in (Plan, ExactPlan))
    scale = fast[fast.isfinite()].abs().max() if fast.isfinite().any() else 1
    assert torch.allclose(fast, exact, rtol=2**-7, atol=float(2**-7 * scale), equal_nan=True)


def run(executor, program):
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for spec in program.tensors:
        if spec.kind != "temp":
            values = dl16_round(torch.randn(spec.storage_elements, generator=generator) * 0.3)
            tensors[spec.name] = values if spec.kind == "input" else torch.full_like(values, torch.nan)
    executor.run(tensors)
    return next(tensors[spec.name] for spec in program.tensors if spec.kind == "output")


@st.composite
def problems(draw):
    groups = []
    for index in range(draw(st.integers(1, 9))):
        first = draw(st.integers(0, 12))
        size = 128 * draw(st.integers(1, 6))
        items = [Item(name=f"t{index}", first=first, last=first + draw(st.integers(0, 5)), num_bytes=size)]
        ended = [g.items[-1] for g in groups if g.items[-1].last == first]
        if ended:
            items[0] = Item(
                name=items[0].name, first=first, last=items[0].last, num_bytes=ended[0].num_bytes,
                replaces=(ended[0].name,),
            )  # fmt: skip
        if draw(st.booleans()):
            begins = items[0].last
            items.append(Item(name=f"r{index}", first=begins, last=begins + draw(st.integers(0, 3)), num_bytes=size))
        groups.append(Group(name=f"t{index}", items=tuple(items), saved=128 * draw(st.integers(1, 20))))
    return groups, 128 * draw(st.integers(1, 14))


def assert_sound(groups, capacity, addresses):
    for group in groups:
        assert len({item.name in addresses for item in group.items}) == 1
    placed = [(i, addresses[i.name]) for g in groups for i in g.items if i.name in addresses]
    for index, (item, address) in enumerate(placed):
        assert 0 <= address <= capacity - item.num_bytes
        assert address % 128 == 0
        for other, place in placed[:index]:
            assert not collides(item, address, other, place)
            apart = address + item.num_bytes <= place or place + other.num_bytes <= address
            together = item.first <= other.last and other.first <= item.last
            assert apart or not together or (item.last == other.first or other.last == item.first)


@settings(max_examples=200, deadline=None)
@given(problems())
def test_greedy_plans_never_overlap_and_keep_to_the_capacity(problem):
    groups, capacity = problem
    assert_sound(groups, capacity, greedy(groups, capacity))


@settings(max_examples=30, deadline=None)
@given(problems())
def test_the_optimal_planner_saves_no_less(problem):
    pytest.importorskip("ortools")
    groups, capacity = problem
    best = lx_solvers.solver("cp_sat")(groups, capacity)
    assert_sound(groups, capacity, best)
    assert saved_bytes(groups, best) >= saved_bytes(groups, greedy(groups, capacity))


def test_the_optimal_planner_finds_what_first_fit_misses():
    pytest.importorskip("ortools")
    long = Group(name="long", items=(Item(name="long", first=0, last=9, num_bytes=256),), saved=256)
    short = [
        Group(name=f"s{i}", items=(Item(name=f"s{i}", first=i, last=i, num_bytes=256),), saved=256) for i in range(5)
    ]
    groups = [long, *short]
    assert set(greedy(groups, 256)) == {"long"}
    assert set(lx_solvers.solver("cp_sat")(groups, 256)) == {f"s{i}" for i in range(5)}


def test_a_missing_solver_library_is_named(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(scratchpad_cpsat.importlib, "import_module", missing)
    with pytest.raises(SettingError, match=r"ortools"):
        lx_solvers.solver("cp_sat")


def test_settings_come_from_the_environment_and_reach_the_program(monkeypatch):
    from spyre_backend.compiler.settings import current

    monkeypatch.setenv("LX_PLANNING", "0")
    monkeypatch.setenv("SENCORES", "4")
    assert not current().lx_planning
    with using(lx_planner="cp_sat", lx_planning=True) as chosen:
        assert chosen.cores == 4
        assert current().lx_planner == "cp_sat"
    monkeypatch.setenv("LX_PLANNING", "maybe")
    with pytest.raises(SettingError, match="LX_PLANNING"):
        current()
    monkeypatch.delenv("LX_PLANNING")
    monkeypatch.delenv("SENCORES")
    with pytest.raises(SettingError, match="cores"), using(cores=-1):
        pass

    def make(builder):
        builder.unary("neg", builder.unary("abs", builder.input(64, 64)))

    plain, changed = built(make).program, built(make, lx_planning=False).program
    assert plain.fingerprint == capabilities.current().fingerprint
    assert changed.fingerprint == f"{plain.fingerprint}+lx_planning=False"
    assert plain.digest != changed.digest
