"""The exact executor on programs that are right: the fast one's numbers, whatever the tiles, cores and layouts."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from spyre_backend.capabilities import load
from spyre_backend.capabilities.model import Numerics
from spyre_backend.emulator import executor
from spyre_backend.emulator.exact import ExactPlan
from spyre_backend.emulator.exact_access import StickAccess
from spyre_backend.emulator.exact_layout import DeviceLayout
from spyre_backend.emulator.executors import ENVIRONMENT_VARIABLE, current_executor
from spyre_backend.emulator.fast import Plan
from spyre_backend.program import Operand, Program
from spyre_backend.runtime.launch import LoadedProgram
from tests.emulator.exact_programs import chain, matmul, row_sum, spec, values, whole
from tests.emulator.lockstep import Lockstep
from tests.emulator.programs import op, program

RESERVED = load("2026.07").limits.lx_reserved_bytes


def compare(made: Program, kilobytes: int | None = None, numerics: Numerics | None = None) -> Lockstep:
    """Run `made` in lockstep with the fast executor, in a scratchpad of another size if one is given."""
    plan = ExactPlan(made, numerics)
    if kilobytes is not None:
        plan.limits = dataclasses.replace(plan.limits, lx_bytes=RESERVED + 1024 * kilobytes)
    tensors = {t.name: values(t, seed) for seed, t in enumerate(made.tensors) if t.kind != "temp"}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    observer = Lockstep(numerics)
    plan.run(tensors, observer=observer)
    Plan(made, numerics).run(expected)
    assert observer.operations == len(made.ops)
    for name in tensors:
        assert tensors[name].isnan().equal(expected[name].isnan()), name
    return observer


@pytest.mark.parametrize(
    ("size", "dtype", "order", "num_sticks", "place"),
    [
        ((5, 100, 150), "float16", None, 100 * 3 * 5, ((4, 99, 149), (99 * 3 + 2) * 5 + 4, 21)),
        ((5, 100, 150), "float16", (1, 0, 2), 5 * 3 * 100, ((4, 99, 149), (4 * 3 + 2) * 100 + 99, 21)),
        ((1024, 256), "float16", None, 4 * 1024, ((1000, 200), 3 * 1024 + 1000, 8)),
        ((4096, 4096), "float16", (1, 0), 64 * 4096, ((130, 7), 2 * 4096 + 7, 2)),
        ((2, 3, 5, 7), "int32", None, 3 * 5 * 2, ((1, 2, 4, 6), (2 * 5 + 4) * 2 + 1, 6)),
        ((6, 9), "float16", (0, 1, -1), 9 * 6, ((5, 8), 8 * 6 + 5, 0)),
        ((), "float32", None, 1, ((), 0, 0)),
        ((1, 1), "float16", None, 1, ((0, 0), 0, 0)),
    ],
)
def test_elements_lie_where_the_layout_says(
    size: tuple[int, ...],
    dtype: str,
    order: tuple[int, ...] | None,
    num_sticks: int,
    place: tuple[tuple[int, ...], int, int],
) -> None:
    tensor = spec("x", "input", size, dtype, order=order)
    layout = DeviceLayout(tensor)
    index, stick, lane = place
    offset = torch.tensor(sum(i * s for i, s in zip(index, tensor.stride, strict=True)))
    assert layout.num_sticks == num_sticks
    assert [int(t) for t in layout.locate(offset)] == [stick, lane, 1]
    assert int(layout.lanes.sum()) == math.prod(size)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "int64", "bool"])
@pytest.mark.parametrize("order", [None, (0, 1, 2, -1), (2, 0, 1)])
def test_host_and_sticks_hold_the_same_elements(dtype: str, order: tuple[int, ...] | None) -> None:
    tensor = spec("x", "input", (3, 5, 70), dtype, order=order)
    layout, flat = DeviceLayout(tensor), values(tensor)
    rows = layout.filled(flat)
    stick, lane, good = layout.locate(torch.arange(len(flat)))
    assert bool(good.all())
    assert torch.equal(layout.decode(rows)[stick, lane], flat)
    assert len({*zip(stick.tolist(), lane.tolist(), strict=True)}) == len(flat)
    back = torch.zeros_like(flat)
    layout.drain(rows, back)
    assert torch.equal(back, flat)
    padding = torch.arange(layout.eps) >= layout.lanes.unsqueeze(1)
    assert bool((rows.view(torch.uint8).view(*rows.shape, -1)[padding] == 0xFF).all())
    empty = layout.decode(layout.blank(1))
    assert bool(
        empty.isnan().all() if empty.is_floating_point() else (empty == (True if dtype == "bool" else -1)).all()
    )


def test_a_strided_input_is_held_by_its_own_strides() -> None:
    made = dataclasses.replace(spec("x", "input", (3, 70)), stride=(200, 1))
    made = dataclasses.replace(made, layout=dataclasses.replace(made.layout, stride_map=(64, 200, 1)))
    layout = DeviceLayout(made)
    flat = torch.arange(made.storage_elements, dtype=torch.float32)
    back = torch.full_like(flat, -1.0)
    layout.drain(layout.filled(flat), back)
    elements = torch.as_strided(torch.ones_like(flat, dtype=torch.bool), (3, 70), (200, 1))
    kept = torch.as_strided(back, (3, 70), (200, 1))
    assert torch.equal(kept, torch.as_strided(flat, (3, 70), (200, 1)))
    assert int((back >= 0).sum()) == elements.numel()


def test_regions_are_whole_sticks() -> None:
    tensor = spec("x", "input", (5, 200))
    access = StickAccess(DeviceLayout(tensor), whole(tensor, (5, 200)), (5, 200), write=False)
    region = access.region((range(1, 3), range(64, 150)))
    assert region.sticks.tolist() == [6, 11, 7, 12]
    assert (region.shape, region.first, region.length) == ((2, 2), 0, 86)


@pytest.mark.parametrize("kilobytes", [None, 64, 3, 1])
def test_pointwise_in_any_tiles(kilobytes: int | None) -> None:
    size = (8, 3, 200)
    x, w, y = spec("x", "input", size), spec("w", "input", (200,)), spec("y", "output", size)
    weight = Operand(tensor="w", strides=(0, 0, 1), offset=0, dtype="float16", stick=2)
    made = op("mul", size, (whole(x, size), weight), whole(y, size))
    compare(program((x, w, y), dataclasses.replace(made, split=(4, 3, 2))), kilobytes)


@pytest.mark.parametrize("kilobytes", [None, 8, 1])
@pytest.mark.parametrize("name", ["sum", "mean", "exx2_meansq", "max", "any"])
def test_reductions_along_the_stick_in_any_tiles(name: str, kilobytes: int | None) -> None:
    made = row_sum((6, 700))
    made = dataclasses.replace(made, ops=(dataclasses.replace(made.ops[0], name=name, split=(3, 1)),))
    if name == "any":
        y = spec("y", "output", (6,), "bool", order=(0, -1))
        output = dataclasses.replace(made.ops[0].output, dtype="bool")
        made = dataclasses.replace(
            made, tensors=(made.tensors[0], y), ops=(dataclasses.replace(made.ops[0], output=output),)
        )
    compare(made, kilobytes)


@pytest.mark.parametrize(
    "made",
    [row_sum((1, 64 * 60)), row_sum((1, 64 * 200)), matmul(1, 64, 64 * 200, (1, 1, 1))],
    ids=["few blocks", "groups of blocks", "groups of products"],
)
def test_tiles_of_a_core_continue_the_sum_without_another_order(made: Program) -> None:
    """One core adds the same blocks in the same order whatever it loads at once."""
    for kilobytes in (None, 64, 9):
        assert compare(made, kilobytes).worst == 0.0


@pytest.mark.parametrize("name", ["sum", "min", "prod"])
@pytest.mark.parametrize("kilobytes", [None, 2])
def test_reductions_across_sticks_and_over_several_dims(name: str, kilobytes: int | None) -> None:
    size = (5, 7, 130)
    x = spec("x", "input", size)
    over_rows = Operand(tensor="x", strides=(910, 1, 130), offset=0, dtype="float16", stick=1)
    y = spec("y", "output", (5, 130))
    target = Operand(tensor="y", strides=(130, 1, 0), offset=0, dtype="float16", stick=1)
    made = op(name, (5, 130, 7), (over_rows,), target, 1)
    compare(program((x, y), dataclasses.replace(made, split=(5, 3, 1))), kilobytes)
    if name != "prod":
        z = spec("z", "output", (7,), order=(0, -1))
        both = Operand(tensor="x", strides=(130, 910, 1), offset=0, dtype="float16", stick=2)
        target = Operand(tensor="z", strides=(1, 0, 0), offset=0, dtype="float16")
        compare(program((x, z), op(name, (7, 5, 130), (both,), target, 2, masked_lanes=62)), kilobytes)


@pytest.mark.parametrize("split", [(1, 1, 1), (4, 1, 1), (1, 3, 1), (2, 3, 4), (1, 1, 8)])
@pytest.mark.parametrize("kilobytes", [None, 32, 9])
def test_matmul_on_any_cores_in_any_tiles(split: tuple[int, int, int], kilobytes: int | None) -> None:
    observer = compare(matmul(12, 150, 512, split), kilobytes)
    one_block_each = split[2] == 512 // 64
    assert (observer.worst == 0.0) == (split[2] == 1 or one_block_each)


@pytest.mark.parametrize("mode", ["blocked", "sequential", "fp32"])
def test_accumulation_modes(mode: str) -> None:
    numerics = dataclasses.replace(
        load("2026.07").numerics,
        matmul_accumulation=mode,
        reduction_accumulation=mode,  # type: ignore[arg-type]
    )
    made = row_sum((3, 200))
    tensors = {t.name: values(t, seed) for seed, t in enumerate(made.tensors)}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    ExactPlan(made, numerics).run(tensors)
    Plan(made, numerics).run(expected)
    assert torch.equal(tensors["y"], expected["y"])
    made = matmul(4, 64, 256, (1, 1, 1))
    tensors = {t.name: values(t, seed) for seed, t in enumerate(made.tensors)}
    expected = {name: tensor.clone() for name, tensor in tensors.items()}
    ExactPlan(made, numerics).run(tensors)
    Plan(made, numerics).run(expected)
    torch.testing.assert_close(tensors["c"], expected["c"], rtol=2.0**-9, atol=0.0)


def test_pieces_that_begin_inside_a_stick() -> None:
    """cat along the stick: the second piece shares a stick with the first, and neither spoils the other (D2.4)."""
    a, b, y = spec("a", "input", (5, 100)), spec("b", "input", (5, 40)), spec("y", "output", (5, 140))
    first = Operand(tensor="y", strides=(140, 1), offset=0, dtype="float16", stick=1)
    second = dataclasses.replace(first, offset=100)
    made = program(
        (a, b, y),
        dataclasses.replace(op("identity", (5, 100), (whole(a, (5, 100)),), first), split=(5, 2)),
        dataclasses.replace(op("identity", (5, 40), (whole(b, (5, 40)),), second), split=(5, 1)),
    )
    compare(made)


def test_fp32_and_fp16_sticks_in_one_operation() -> None:
    size = (4, 100)
    x, y = spec("x", "input", size), spec("y", "output", size, "float32")
    made = op("dl16tofp32", size, (whole(x, size),), whole(y, size))
    compare(program((x, y), dataclasses.replace(made, split=(2, 2))))


def test_topk_gather_and_constants() -> None:
    size = (6, 200)
    x, y = spec("x", "input", size), spec("y", "output", (6, 5), "int64")
    made = op("topkindex", size, (whole(x, size),), whole(y, size), 1, k=5, masked_lanes=56)
    compare(program((x, y), dataclasses.replace(made, split=(3, 1))))
    t, i, z = spec("t", "input", (9, 70)), spec("i", "input", (6,), "int64"), spec("z", "output", (6, 70))
    table = Operand(tensor="t", strides=(0, 1), offset=0, dtype="float16", stick=1)
    index = Operand(tensor="i", strides=(1, 0), offset=0, dtype="int64", stick=0)
    looked_up = op("gather", (6, 70), (table, index), whole(z, (6, 70)), index_stride=70, index_extent=9)
    made_gather = program((t, i, z), dataclasses.replace(looked_up, split=(1, 2)))
    tensors = {"t": values(t), "i": torch.tensor([8, 0, 3, 3, 7, 1]), "z": torch.zeros(420)}
    ExactPlan(made_gather).run(tensors)
    assert torch.equal(tensors["z"].view(6, 70), tensors["t"].view(9, 70)[tensors["i"]])


def test_arguments_that_share_memory_see_each_others_writes() -> None:
    x = spec("x", "inout", (4, 64))
    turned = dataclasses.replace(
        spec("v", "input", (64, 4), order=(1, 0)), stride=(1, 64), layout=spec("v", "input", (4, 64)).layout
    )
    turned = dataclasses.replace(turned, layout=dataclasses.replace(turned.layout, stick_dim=0))
    y = spec("y", "output", (4, 64))
    read = Operand(tensor="v", strides=(64, 1), offset=0, dtype="float16", stick=1)
    made = program(
        (x, turned, y),
        op("neg", (4, 64), (whole(x, (4, 64)),), whole(x, (4, 64))),
        op("identity", (4, 64), (read,), whole(y, (4, 64))),
    )
    memory = values(x)
    before = memory.clone()
    tensors = {"x": memory, "v": memory, "y": torch.zeros(256)}
    ExactPlan(made).run(tensors)
    assert torch.equal(tensors["y"], -before)


def test_values_after_death_are_gone() -> None:
    """Memory of a temporary is poisoned when its last reader has finished."""
    made = chain()
    seen: list[torch.Tensor] = []

    class Watch(Lockstep):
        def __call__(self, item, state, after) -> None:  # type: ignore[no-untyped-def]
            if item.position == 2 and after:
                seen.append(state.flat("t"))
                self.state = state

    watch = Watch()
    tensors = {t.name: values(t) for t in made.tensors if t.kind != "temp"}
    ExactPlan(made).run(tensors, observer=watch)
    assert torch.equal(seen[0], -tensors["x"])
    assert bool(watch.state.flat("t").isnan().all())


def test_the_default_device_of_the_caller_does_not_matter() -> None:
    made, tensors = chain(), {name: torch.ones(400) for name in ("x", "y")}
    with torch.device("meta"):
        ExactPlan(made).run(tensors)
    assert float(tensors["y"][0]) == pytest.approx(math.exp(-1) - 1, abs=2.0**-9)


def test_choosing_the_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current_executor() == "fast"
    with executor("exact"):
        assert current_executor() == "exact"
        with executor("fast"):
            assert current_executor() == "fast"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "exact")
    assert current_executor() == "exact"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, "quick")
    with pytest.raises(ValueError, match="no executor 'quick'"):
        current_executor()
    with pytest.raises(ValueError, match="no executor"), executor("slow"):  # type: ignore[arg-type]
        pass


def test_launches_use_the_chosen_executor() -> None:
    """A program that only the exact executor refuses."""
    made = chain((4, 100), u={"lx_address": 128})
    x, y = (torch.zeros(4, 100, dtype=torch.float16, device="spyre") for _ in range(2))
    loaded = LoadedProgram(made)
    loaded.launch(x, y)
    torch.spyre.synchronize()
    with executor("exact"):
        loaded.launch(x, y)
    with pytest.raises(RuntimeError, match="overwrite 't'"):
        torch.spyre.synchronize()
