"""Launches on device tensors: argument checks, offsets, aliases, counters, loading from JSON."""

from __future__ import annotations

import threading

import pytest
import torch

from spyre_backend.emulator.numerics import dl16_round
from spyre_backend.errors import SpyreRuntimeError, SpyreUnsupported
from spyre_backend.program import Program
from spyre_backend.runtime.launch import LoadedProgram, load_program
from tests.emulator.programs import contiguous, op, operand, program, spec

MID_STICK = "2026.09"
"""A release that takes arguments which start in the middle of a stick."""


def loaded(made: Program) -> LoadedProgram:
    """`made` as the generated wrapper loads it."""
    return load_program(made.to_json())


def doubling(size: tuple[int, ...] = (4,), dtype: str = "float16", stride: tuple[int, ...] | None = None) -> Program:
    """`y = x + x`."""
    x, y = spec("x", "input", size, dtype, stride), spec("y", "output", size, dtype)
    read, write = operand(x, x.stride), operand(y, contiguous(size))
    return program((x, y), op("add", size, (read, read), write))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64])
def test_a_launch_computes_on_every_number_format(dtype: torch.dtype) -> None:
    x = torch.tensor([1, -2, 3, 100], dtype=dtype, device="spyre")
    y = torch.zeros(4, dtype=dtype, device="spyre")
    loaded(doubling(dtype=str(dtype).removeprefix("torch."))).launch(x, y)
    assert y.cpu().tolist() == [2, -4, 6, 200]
    assert x.cpu().tolist() == [1, -2, 3, 100]


def test_a_bool_result_is_written_as_bool() -> None:
    x, y = spec("x", "input", (3,)), spec("y", "output", (3,), "bool")
    made = program((x, y), op("greaterthan", (3,), (operand(x, (1,)), operand(x, (0,))), operand(y, (1,))))
    out = torch.zeros(3, dtype=torch.bool, device="spyre")
    loaded(made).launch(torch.tensor([1.0, 0.5, 2.0], dtype=torch.float16, device="spyre"), out)
    assert out.cpu().tolist() == [False, False, True]


def test_results_pass_through_the_16_bit_format_of_the_device() -> None:
    x = torch.full((4,), 60000.0, dtype=torch.float16, device="spyre")
    y, z = torch.zeros_like(x), torch.zeros_like(x)
    run = loaded(doubling())
    run.launch(x, y)
    assert y.cpu().isinf().all(), "outside of fp16 on the host"
    half = spec("x", "input", (4,)), spec("y", "output", (4,))
    from spyre_backend.program import Const

    made = program(
        half, op("mul", (4,), (operand(half[0], (1,)), Const(value=0.5, dtype="float16")), operand(half[1], (1,)))
    )
    loaded(made).launch(y, z)
    assert torch.equal(z.cpu(), x.cpu()), "but not on the device"


def test_strided_arguments_at_an_offset_read_and_write_only_their_own_elements() -> None:
    base = torch.arange(24.0).to(torch.float16).to("spyre")
    x = base.as_strided((3, 2), (4, 1), 5)
    out_base = torch.full((20,), 7.0, dtype=torch.float16, device="spyre")
    y = out_base.as_strided((3, 2), (1, 5), 3)
    sx, sy = spec("x", "input", (3, 2), stride=(4, 1)), spec("y", "output", (3, 2), stride=(1, 5))
    made = program((sx, sy), op("neg", (3, 2), (operand(sx, (4, 1)),), operand(sy, (1, 5))), release=MID_STICK)
    loaded(made).launch(x, y)
    expected = torch.full((20,), 7.0, dtype=torch.float16)
    expected.as_strided((3, 2), (1, 5), 3).copy_(-base.cpu().as_strided((3, 2), (4, 1), 5))
    assert torch.equal(out_base.cpu(), expected)
    assert torch.equal(base.cpu(), torch.arange(24.0).to(torch.float16))


def test_an_argument_that_starts_mid_stick_is_refused_where_the_release_says_so() -> None:
    x = torch.zeros(8, dtype=torch.float16, device="spyre")[2:6]
    with pytest.raises(SpyreUnsupported, match=r"non-stick-aligned .*storage_offset=2") as caught:
        loaded(doubling()).launch(x, torch.zeros(4, dtype=torch.float16, device="spyre"))
    assert caught.value.rule == "storage-offset"


def test_an_inout_keeps_what_the_program_does_not_write() -> None:
    x, y = spec("x", "input", (2,)), spec("y", "inout", (4,))
    made = program((x, y), op("identity", (2,), (operand(x, (1,)),), operand(y, (1,), 1)))
    target = torch.arange(4.0).to(torch.float16).to("spyre")
    loaded(made).launch(torch.tensor([9.0, 8.0], dtype=torch.float16, device="spyre"), target)
    assert target.cpu().tolist() == [0.0, 9.0, 8.0, 3.0]


def test_aliased_arguments_see_each_others_writes() -> None:
    x, y = spec("x", "input", (3,)), spec("y", "inout", (3,))
    made = program(
        (x, y),
        op("add", (3,), (operand(y, (1,)), operand(y, (1,))), operand(y, (1,))),
        op("add", (3,), (operand(x, (1,)), operand(y, (1,))), operand(y, (1,))),
        release=MID_STICK,
    )
    base = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float16, device="spyre")
    loaded(made).launch(base[:3], base[1:])
    # y = [2,3,4] doubles to [4,6,8]; then x = [1,4,6], written before it is read.
    assert base.cpu().tolist() == [1.0, 5.0, 10.0, 14.0]


def test_one_tensor_may_be_input_and_output() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float16, device="spyre")
    loaded(doubling()).launch(x, x)
    assert x.cpu().tolist() == [2.0, 4.0, 6.0, 8.0]


def test_an_input_may_be_given_twice() -> None:
    a, b, y = spec("a", "input", (2,)), spec("b", "input", (2,)), spec("y", "output", (2,))
    made = program((a, b, y), op("mul", (2,), (operand(a, (1,)), operand(b, (1,))), operand(y, (1,))))
    x, out = (
        torch.tensor([3.0, -4.0], dtype=torch.float16, device="spyre"),
        torch.zeros(2, dtype=torch.float16, device="spyre"),
    )
    loaded(made).launch(x, x, out)
    assert out.cpu().tolist() == [9.0, 16.0]


def test_expanded_inputs_are_read_through_stride_zero() -> None:
    x = torch.tensor([[1.0], [2.0]], dtype=torch.float16, device="spyre").expand(2, 3)
    y = torch.zeros(2, 3, dtype=torch.float16, device="spyre")
    loaded(doubling((2, 3), stride=(1, 0))).launch(x, y)
    assert y.cpu().tolist() == [[2.0] * 3, [4.0] * 3]


def test_changed_weights_are_seen_by_the_next_launch() -> None:
    run = loaded(doubling())
    weight = torch.nn.Parameter(torch.ones(4, dtype=torch.float16, device="spyre"), requires_grad=False)
    out = torch.zeros(4, dtype=torch.float16, device="spyre")
    for change in (
        lambda: None,
        lambda: weight.data.copy_(torch.full((4,), 2.0)),
        lambda: weight.fill_(3.0),
        lambda: weight.zero_(),
    ):
        change()
        run.launch(weight, out)
        assert torch.equal(out.cpu(), 2 * weight.detach().cpu())
    run.launch(weight, weight)
    weight.fill_(5.0)
    run.launch(weight, weight)
    run.launch(weight, out)
    assert out.cpu().tolist() == [20.0] * 4


def test_memory_that_is_used_again_is_decoded_again() -> None:
    run = loaded(doubling((64,)))
    out = torch.zeros(64, dtype=torch.float16, device="spyre")
    for value in range(6):
        x = torch.full((64,), float(value), dtype=torch.float16, device="spyre")
        run.launch(x, out)
        assert out.cpu().tolist() == [2.0 * value] * 64
        del x


@pytest.mark.parametrize("size", [(0,), (3, 0)])
def test_tensors_without_elements(size: tuple[int, ...]) -> None:
    x, y = (torch.zeros(size, dtype=torch.float16, device="spyre") for _ in range(2))
    loaded(doubling(size)).launch(x, y)
    assert y.cpu().shape == size


def test_launches_are_counted() -> None:
    x = torch.zeros(4, dtype=torch.float16, device="spyre")
    run = loaded(doubling())
    before = torch.spyre.launch_count()
    run.launch(x, torch.zeros_like(x))
    run.launch(x, torch.zeros_like(x))
    assert torch.spyre.launch_count() == before + 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.zeros(4, dtype=torch.float16), r"argument 0 \('x'\) is on cpu, not on the spyre device"),
        (lambda: torch.zeros(5, dtype=torch.float16, device="spyre"), r"size \[5\], compiled for \[4\]"),
        (
            lambda: torch.zeros(4, dtype=torch.float32, device="spyre"),
            r"dtype torch\.float32, compiled for torch\.float16",
        ),
        (lambda: torch.zeros(8, dtype=torch.float16, device="spyre")[::2], r"strides \[2\], compiled for \[1\]"),
        (lambda: 3.0, "is a float, not a tensor"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(make: object, message: str) -> None:
    with pytest.raises(SpyreRuntimeError, match=message):
        loaded(doubling()).launch(make(), torch.zeros(4, dtype=torch.float16, device="spyre"))  # type: ignore[operator]


def test_the_number_of_arguments_is_checked() -> None:
    with pytest.raises(SpyreRuntimeError, match=r"takes 2 arguments \(x, y\), got 1"):
        loaded(doubling()).launch(torch.zeros(4, dtype=torch.float16, device="spyre"))


def test_a_failed_launch_changes_nothing_and_surfaces_at_the_next_synchronisation() -> None:
    table, ids, out = spec("table", "input", (4, 2)), spec("ids", "input", (1,), "int64"), spec("out", "inout", (1, 2))
    made = program(
        (table, ids, out),
        op("fill", (1, 2), (operand(table, (0, 0)),), operand(out, (2, 1))),
        op("gather", (1, 2), (operand(table, (0, 1)), operand(ids, (1, 0))), operand(out, (2, 1)), index_stride=2),
    )
    result = torch.full((1, 2), 7.0, dtype=torch.float16, device="spyre")
    values, index = torch.ones(4, 2, dtype=torch.float16, device="spyre"), torch.tensor([9], device="spyre")
    loaded(made).launch(values, index, result)
    with pytest.raises(SpyreRuntimeError, match=r"index 9 is outside(.|\n)*launched at .*test_launch.py"):
        torch.spyre.synchronize()
    assert result.cpu().tolist() == [[7.0, 7.0]]


def test_a_gathered_table_is_looked_up_in_codes() -> None:
    table, ids, out = (
        spec("table", "input", (50, 64)),
        spec("ids", "input", (3,), "int64"),
        spec("out", "output", (3, 64)),
    )
    made = program(
        (table, ids, out),
        op("gather", (3, 64), (operand(table, (0, 1)), operand(ids, (1, 0))), operand(out, (64, 1)), index_stride=64),
    )
    values, index = torch.randn(50, 64).half(), torch.tensor([4, 49, 0])
    result = torch.zeros(3, 64, dtype=torch.float16, device="spyre")
    loaded(made).launch(values.to("spyre"), index.to("spyre"), result)
    assert torch.equal(result.cpu(), dl16_round(values[index].float()).half())


def test_programs_are_parsed_once_and_shared_by_digest() -> None:
    import dataclasses

    made = doubling()
    first = load_program(made.to_json())
    assert load_program(made.to_json()) is first
    renamed = dataclasses.replace(made, name="another layer")
    assert load_program(renamed.to_json()) is first
    assert load_program(doubling((8,)).to_json()) is not first


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"name": "x"}'])
def test_text_that_is_not_a_program_is_refused(text: str) -> None:
    with pytest.raises(SpyreRuntimeError, match="cannot load a program"):
        load_program(text)


def test_launches_from_several_threads_do_not_disturb_each_other() -> None:
    run = loaded(doubling((256,)))
    wrong: list[int] = []

    def work(value: int) -> None:
        x = torch.full((256,), float(value), dtype=torch.float16, device="spyre")
        y = torch.zeros_like(x)
        for _ in range(20):
            run.launch(x, y)
        if y.cpu().tolist() != [2.0 * value] * 256:
            wrong.append(value)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_default_device_does_not_reach_into_the_executor() -> None:
    x, y = (torch.ones(4, dtype=torch.float16, device="spyre") for _ in range(2))
    with torch.device("spyre"):
        loaded(doubling()).launch(x, y)
    assert y.cpu().tolist() == [2.0] * 4
