"""The clock against the checks that the device notes state (D7.1 to D7.6, D7.9)."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from spyre_backend.emulator import clock, clock_constants, clock_rates
from spyre_backend.emulator.clock import ClockSettings, copy_time, launch_time, program_time
from spyre_backend.program import Op, TensorSpec
from tests.emulator.clock_programs import matmul, pointwise, read, softmax, sparse, tensor
from tests.emulator.programs import program


def test_constants_are_named_sourced_and_marked() -> None:
    for name, fact in clock_constants.FACTS.items():
        assert getattr(clock_constants, name) == fact.value
        assert fact.source.startswith("D"), name
        assert fact.meaning
        assert fact.mark in ("stated", "inferred", "uncertain")
    values = {n for n in vars(clock_constants) if n.isupper() and n != "FACTS"}
    assert values == set(clock_constants.FACTS)


def test_resident_softmax_is_the_check_of_d7_1() -> None:
    """R = W = 16.78 MB: 320 us of memory time; the card took 390 us, later 261 us."""
    time = program_time(softmax(4096, 2048, resident=True))
    assert time.read_bytes == time.written_bytes == 16_777_216
    assert time.memory_us == pytest.approx(320.0, rel=0.005)
    assert 261 < time.us < 390


def test_relu_of_neg_on_eight_cores() -> None:
    """#4024: 80.0 us through device memory; in the scratchpad 40.0 and the relayout on top (D7.9 row 7)."""
    size, split = (8, 256, 512), (8, 1, 1)
    x, y = tensor("x", "input", size), tensor("y", "output", size)
    for lx, expected in ((None, 80.0), (0, 40.0)):
        t = tensor("t", "temp", size, lx)
        time = program_time(program((x, t, y), pointwise("neg", [x], t, split), pointwise("relufwd", [t], y, split)))
        assert time.us == pytest.approx(expected, rel=0.002)


def test_bandwidth_follows_the_cores_of_a_matmul() -> None:
    """D7.9 row 9: 1.762 ms on 25 cores, 1.377 with 8 rows on 32, 1.508 with N padded."""
    cases = [((1, 25600), (1, 25, 1), 1762), ((8, 25600), (2, 16, 1), 1377), ((1, 26624), (1, 32, 1), 1508)]
    for (m, n), split, measured in cases:
        assert program_time(matmul(m, n, 4096, split)).us == pytest.approx(measured, rel=0.05)
    assert clock_rates.core_scaling(25) == pytest.approx(0.80, abs=0.01)


def test_large_matmul_runs_at_the_sustained_rate() -> None:
    time = program_time(matmul(4096, 4096, 4096, (8, 4, 1)))
    assert time.bound == "compute"
    assert 0.72 < time.utilisation < 0.742


def test_operations_share_the_time_of_the_bundle() -> None:
    for case in (softmax(512, 1024, resident=True), softmax(512, 1024, resident=False)):
        time = program_time(case)
        assert sum(op.us for op in time.ops) == pytest.approx(time.us)
        assert time.us == pytest.approx(max(time.compute_us, time.memory_us))
        assert all(op.us > 0 for op in time.ops)


def test_counting_rules() -> None:
    """Inputs once, temporaries in device memory a write and a read, scratchpads nothing; every access is `touched`."""
    inside, outside = (program_time(softmax(512, 1024, resident=r)) for r in (True, False))
    whole, column = 512 * 1024 * 2, 512 * 128
    assert (inside.read_bytes, inside.written_bytes, inside.touched_bytes) == (whole, whole, 3 * whole)
    assert (outside.read_bytes, outside.written_bytes) == (3 * whole + 2 * column, 3 * whole + 2 * column)
    assert outside.touched_bytes == 8 * whole + 4 * column


def test_a_slice_is_charged_for_what_it_touches() -> None:
    wide, part = tensor("wide", "input", (256, 1024)), tensor("part", "output", (256, 128))
    op = Op(name="neg", dims=(256, 128), reduced=0, inputs=(read(wide, (1024, 1), 128),), output=read(part, (128, 1)))
    time = program_time(program((wide, part), op))
    assert time.read_bytes == time.written_bytes == 256 * 128 * 2


def test_a_padded_layout_is_charged_in_whole_sticks() -> None:
    x, y = tensor("x", "input", (100, 70)), tensor("y", "output", (100, 70))
    assert program_time(program((x, y), pointwise("neg", [x], y, (4, 1)))).read_bytes == 100 * 2 * 128


def test_broadcast_add_of_64_rows() -> None:
    """D7.2: 52 us for three streams, 30 to 33 us when one operand is broadcast."""
    size = (64, 16384)
    x, y, z, row = (
        tensor("x", "input", size),
        tensor("y", "input", size),
        tensor("z", "output", size),
        tensor("row", "input", (1, 16384)),
    )
    streams = program_time(program((x, y, z), pointwise("add", [x, y], z, (32, 1))))
    broadcast = program_time(program((x, row, z), pointwise("add", [x, row], z, (32, 1))))
    assert streams.us == pytest.approx(52, rel=0.05)
    assert 30 < broadcast.us < 33.5
    assert broadcast.ops[0].kind == "broadcast"


@pytest.mark.parametrize(("cores", "share"), [(1, 0.11), (2, 0.22), (4, 0.43), (8, 0.54), (16, 0.54), (32, 1.0)])
def test_standalone_row_reduction(cores: int, share: float) -> None:
    x, y = tensor("x", "input", (2048, 4096)), sparse("y", "output", (2048, 1))
    op = Op(
        name="sum",
        dims=(2048, 1, 4096),
        reduced=1,
        inputs=(read(x, (4096, 0, 1)),),
        output=read(y, (1, 0, 0)),
        split=(cores, 1, 1),
    )
    rate = min(150.0, 114 + 61 * math.exp(-2048 / 3700)) * share
    moved = 2048 * 4096 * 2 + 2048 * 128
    assert program_time(program((x, y), op)).us == pytest.approx(moved / rate / 1000)


def test_short_runs_make_a_restickify_slow() -> None:
    """D7.3: runs of one stick cost about 30 times the requests of 4096-byte runs."""
    size = 64 * 1024 * 1024
    quick, slow = (clock_rates.restickify_ns(size, run, 32) for run in (4096, 128))
    assert quick == pytest.approx(2 * size / 116)
    assert slow > 2 * quick
    assert clock_rates.restickify_ns(size, 4096, 1) > quick


def test_relayout_formula() -> None:
    """D7.6: 2.1 MB on 8 cores, 8.8 us predicted; #4024's term of 1.1 us is a two-way exchange of the same size."""
    assert clock_rates.relayout_ns(262_144, 8, 468) == pytest.approx(8800, rel=0.01)
    assert clock_rates.relayout_ns(262_144, 2, 64) == pytest.approx(1100, rel=0.05)


def test_dispatch_paths() -> None:
    assert launch_time("direct") == 25
    assert launch_time("graph") + 429.5 == pytest.approx(5520)
    assert copy_time(0, dispatch="graph") > 60 * copy_time(0)
    assert copy_time(12_000_000, converted=False) == pytest.approx(1030)
    assert copy_time(12_000_000) == pytest.approx(4030)
    with clock.use(ClockSettings(dispatch="graph")):
        assert launch_time() == launch_time("graph")


def test_noise_is_off_by_default_and_repeatable() -> None:
    case = softmax(512, 1024, resident=True)
    plain = program_time(case)
    noisy = program_time(case, ClockSettings(noise_seed=7))
    assert plain == program_time(case)
    assert noisy == program_time(case, ClockSettings(noise_seed=7))
    assert noisy.us != plain.us
    factors = [program_time(case, ClockSettings(noise_seed=s)).us / plain.us for s in range(40)]
    assert 0.85 < sum(factors) / len(factors) < 1.15


def test_environment_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPYRE_CLOCK_DISPATCH", "graph")
    monkeypatch.setenv("SPYRE_CLOCK_NOISE", "3")
    assert clock.settings() == ClockSettings(dispatch="graph", noise_seed=3)
    monkeypatch.setenv("SPYRE_CLOCK_NOISE", "loud")
    with pytest.raises(clock.ClockSettingError, match="SPYRE_CLOCK_NOISE"):
        clock.settings()


def test_mean_and_mean_of_squares_are_one_pass() -> None:
    x = tensor("x", "input", (512, 1024))
    mean, square = sparse("mean", "output", (512, 1)), sparse("square", "output", (512, 1))

    def reduction(name: str, target: TensorSpec) -> Op:
        inputs = (read(x, (1024, 0, 1)),)
        return Op(
            name=name, dims=(512, 1, 1024), reduced=1, inputs=inputs, output=read(target, (1, 0, 0)), split=(32, 1, 1)
        )

    both = program_time(program((x, mean, square), reduction("exx2_mean", mean), reduction("exx2_meansq", square)))
    assert both.compute_us == pytest.approx(512 * 1024 / 32 / 1.5 / 1000)
    sums = program_time(program((x, mean, square), reduction("mean", mean), reduction("sum", square)))
    assert sums.compute_us == pytest.approx(2 * both.compute_us)


def test_few_cores_slow_a_pointwise_operation_as_the_setting_says() -> None:
    x, y = tensor("x", "input", (1024, 1024)), tensor("y", "output", (1024, 1024))
    eight = program((x, y), pointwise("neg", [x], y, (8, 1)))
    whole = program((x, y), pointwise("neg", [x], y, (32, 1)))
    assert program_time(eight).us == program_time(whole).us
    table = program_time(eight, ClockSettings(pointwise_scaling="table")).us
    assert table == pytest.approx(program_time(whole).us / 0.54)
    assert program_time(program((x, y), pointwise("neg", [x], y, (1, 1)))).us > 2 * program_time(whole).us


def test_an_empty_tensor_takes_no_time() -> None:
    x = tensor("x", "input", (4, 64))
    empty = replace(x, size=(0, 64), layout=replace(x.layout, device_size=(1, 0, 64)))
    out = replace(empty, name="y", kind="output")
    assert program_time(program((empty, out), pointwise("neg", [empty], out, (1, 1)))).us == 0
