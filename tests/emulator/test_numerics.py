"""DL16: rounding, range, codes, and the blocked accumulation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spyre_backend.emulator import numerics
from tests.emulator import reference

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
scaled = st.builds(math.ldexp, st.floats(-2, 2, width=32), st.integers(-36, 36))
ALL_CODES = torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal bit for bit, but any NaN equals any NaN."""
    zeros = torch.signbit(a) == torch.signbit(b)
    return bool((((a == b) & zeros) | (a.isnan() & b.isnan())).all())


@given(st.lists(floats | scaled, min_size=1, max_size=64))
def test_rounding_gives_the_nearest_dl16_value(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32)
    expected = torch.tensor([reference.dl16(v) for v in x.tolist()])
    assert same(numerics.dl16_round(x), expected)
    assert same(numerics.dl16_round_reference(x), expected)


@given(st.lists(floats | scaled, min_size=1, max_size=64))
def test_rounding_is_idempotent_odd_and_monotone(values: list[float]) -> None:
    x = torch.tensor(values, dtype=torch.float32).sort().values
    once = numerics.dl16_round(x)
    assert same(numerics.dl16_round(once), once)
    assert same(numerics.dl16_round(-x), -once)
    finite = once[~once.isnan()]
    assert bool((finite[1:] >= finite[:-1]).all())


def test_every_code_survives_decoding_and_encoding() -> None:
    values = numerics.dl16_decode(ALL_CODES)
    codes = numerics.dl16_encode(values)
    is_nan = (ALL_CODES.to(torch.int32) & 0x7FFF) == numerics.NAN_CODE
    assert torch.equal(codes[~is_nan], ALL_CODES[~is_nan])
    assert values[is_nan].isnan().all()
    assert int(is_nan.sum()) == 2
    assert same(values, numerics.dl16_decode_reference(ALL_CODES))
    assert torch.equal(codes, numerics.dl16_encode_reference(values))


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x1000, 2.0**-23),
        (0x7FFE, 8_573_157_376.0),
        (0x0001, 513 / 512 * 2.0**-31),
        (0xEFFF - 0x10000, -33_521_664.0),
        (0, 0.0),
    ],
)
def test_codes_of_the_fact_sheet(code: int, value: float) -> None:
    codes = torch.tensor([code], dtype=torch.int16)
    assert numerics.dl16_decode(codes).item() == value
    assert numerics.dl16_encode(torch.tensor([value])).item() == code


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 2.0**33, -1e30, 8_573_157_376.0 * 1.001])
def test_infinities_overflow_and_nan_merge(value: float) -> None:
    x = torch.tensor([value])
    assert numerics.dl16_round(x).isnan().all()
    assert numerics.dl16_encode(x).item() & 0x7FFF == 0x7FFF


def test_the_smallest_number_and_what_rounds_to_zero() -> None:
    smallest = numerics.DL16_MIN
    x = torch.tensor(
        [smallest, smallest / 2, math.nextafter(smallest / 2, 1.0) * 1.0001, 2.0**-31, -smallest * 0.6, 1e-42]
    )
    assert numerics.dl16_round(x).tolist() == [smallest, 0.0, smallest, smallest, -smallest, 0.0]


@given(st.integers(0, 2**31), st.integers(1, 5), st.integers(1, 7))
def test_accumulation_rounds_every_partial_and_every_sum(seed: int, blocks: int, width: int) -> None:
    partials = torch.randn(blocks, 3, width, generator=torch.Generator().manual_seed(seed)) * 100
    expected = [0.0] * (3 * width)
    for block in partials:
        expected = [
            reference.dl16(t + reference.dl16(p)) for t, p in zip(expected, block.flatten().tolist(), strict=True)
        ]
    assert numerics.block_accumulate(partials).flatten().tolist() == expected
    assert numerics.block_accumulate_reference(partials).flatten().tolist() == expected


def test_accumulation_loses_what_a_fp32_sum_keeps() -> None:
    partials = torch.cat([torch.full((1, 1), 1024.0), torch.full((64, 1), 0.9)])
    assert numerics.block_accumulate(partials).item() == 1024.0


@pytest.mark.parametrize("arrange", [lambda t: t.t(), lambda t: t[:, ::2], lambda t: t[1:, 1:3]])
def test_rounding_in_place_respects_strides(arrange: object) -> None:
    base = torch.randn(6, 8)
    view = arrange(base.clone())  # type: ignore[operator]
    expected = numerics.dl16_round_reference(view)
    assert torch.equal(numerics.dl16_round_(view), expected)


@pytest.mark.parametrize("vocabulary", [151_936, 262_144])
def test_a_sum_over_a_vocabulary_grows_in_groups_only(vocabulary: int) -> None:
    """D6.5: partial sums of 64 ones, added one after another: at 65,536 another 64 is half a unit, and is lost."""
    partials = torch.full((vocabulary // 64, 1), 64.0)
    assert numerics.block_accumulate(partials).item() == 65_536.0
    assert numerics.grouped_accumulate(partials, 0).item() == 65_536.0
    assert numerics.grouped_accumulate(partials, 64).item() == numerics.dl16_round(torch.tensor(float(vocabulary)))


@pytest.mark.parametrize("blocks", [1, 63, 64])
def test_as_many_partial_sums_as_were_measured_are_added_one_after_another(blocks: int) -> None:
    partials = torch.randn(blocks, 7, generator=torch.Generator().manual_seed(blocks))
    assert torch.equal(numerics.grouped_accumulate(partials, 64), numerics.block_accumulate(partials))
