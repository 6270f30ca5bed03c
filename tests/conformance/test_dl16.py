"""The number format of the device: codes, rounding, range, and the copies between host and device (D1.5)."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spyre_backend import _C, capabilities

NUMERICS = capabilities.load("2026.07").numerics
LARGEST = NUMERICS.dl16_max


def code_of(value: float) -> int:
    return int(_C.dl16_encode(torch.tensor([value], dtype=torch.float32))[0]) & 0xFFFF


def value_of(code: int) -> float:
    signed = code - 0x10000 if code >= 0x8000 else code
    return float(_C.dl16_decode(torch.tensor([signed], dtype=torch.int16))[0])


def rounded(*values: float) -> list[float]:
    return _C.dl16_round(torch.tensor(values, dtype=torch.float32)).tolist()


def definition(code: int) -> float:
    """The value of a code by the format's definition: no subnormals, only magnitude 0 is zero, 0x7FFF is NaN."""
    sign, magnitude = (-1.0 if code & 0x8000 else 1.0), code & 0x7FFF
    if magnitude == 0:
        return sign * 0.0
    if magnitude == NUMERICS.dl16_nan_code:
        return math.nan
    return sign * (1 + (magnitude & 0x1FF) / 512) * 2.0 ** ((magnitude >> 9) - 31)


def all_codes() -> torch.Tensor:
    return torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16)


def test_every_code_decodes_by_definition() -> None:
    decoded = _C.dl16_decode(all_codes())
    wanted = torch.tensor([definition(int(c) & 0xFFFF) for c in all_codes()], dtype=torch.float32)
    assert torch.equal(decoded.nan_to_num(7.0), wanted.nan_to_num(7.0))
    assert torch.equal(decoded.isnan(), wanted.isnan())


def test_encode_inverts_decode() -> None:
    codes = all_codes()
    finite = codes[(codes.int() & 0x7FFF != 0x7FFF) & (codes.int() & 0x7FFF != 0)]
    assert torch.equal(_C.dl16_encode(_C.dl16_decode(finite)), finite)


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x1000, 2.0**-23),
        (0x7FFE, 8_573_157_376.0),
        (0x3E00, 1.0),
        (0xEFFF, -33_521_664.0),
        (0x0001, (1 + 1 / 512) * 2.0**-31),
        (0x5DFF, 65_472.0),
    ],
)
def test_vectors(code: int, value: float) -> None:
    assert value_of(code) == value
    assert code_of(value) == code


def test_rounding_is_half_to_even() -> None:
    ulp = 2.0**-9
    assert rounded(1 + ulp / 2, 1 + 3 * ulp / 2, 1 + 0.49 * ulp, 1 + 0.51 * ulp) == [1.0, 1 + 2 * ulp, 1.0, 1 + ulp]
    assert rounded(-(1 + ulp / 2), -(1 + 3 * ulp / 2)) == [-1.0, -(1 + 2 * ulp)]
    assert rounded(2 - ulp / 4) == [2.0]


@pytest.mark.parametrize(
    ("fp16", "rne"),
    [(0.5903, 0.5898), (0.1669, 0.1670), (0.1876, 0.1875), (-2.002, -2.0)],
)
def test_observed_inputs_under_rne(fp16: float, rne: float) -> None:
    """Column RNE of the table in D1.5 (values there have four digits)."""
    half = torch.tensor(fp16, dtype=torch.float16).float().item()
    assert rounded(half)[0] == pytest.approx(rne, abs=6e-5)


@settings(max_examples=200, deadline=None)
@given(st.floats(min_value=2.0**-30, max_value=2.0**32, width=32), st.booleans())
def test_rounding_is_nearest(value: float, negative: bool) -> None:
    value = -value if negative else value
    got = rounded(value)[0]
    assert abs(got - value) <= abs(value) * 2.0**-10
    assert rounded(got)[0] == got


@settings(max_examples=100, deadline=None)
@given(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(width=32, allow_nan=False, allow_infinity=False),
)
def test_rounding_is_monotone(a: float, b: float) -> None:
    low, high = rounded(min(a, b), max(a, b))
    assert math.isnan(low) or math.isnan(high) or low <= high


def test_range() -> None:
    over = 2.0**33 + 2.0**30
    assert rounded(LARGEST) == [LARGEST]
    assert all(math.isnan(x) or math.isinf(x) for x in rounded(over, -over, math.inf, math.nan))
    assert rounded(2.0**-40, -(2.0**-40)) == [0.0, 0.0]
    assert rounded(0.0) == [0.0]


def test_in_place_rounding_agrees() -> None:
    x = torch.randn(1000, generator=torch.Generator().manual_seed(1)) * 1e3
    y = x.clone()
    _C.dl16_round_(y)
    assert torch.equal(y, _C.dl16_round(x))
    assert torch.equal(y, _C.dl16_decode(_C.dl16_encode(x)))


def test_block_accumulate() -> None:
    partials = torch.tensor([[512.0, 1.0], [0.5, 2.0**-9], [0.5, 2.0**-9], [1.0, 3.0]])
    expected = []
    for column in partials.t().tolist():
        total = 0.0
        for partial in column:
            total = rounded(total + rounded(partial)[0])[0]
        expected.append(total)
    assert _C.block_accumulate(partials).tolist() == expected
    assert expected[0] == 513.0, "512 + 0.5 + 0.5 loses both halves, exact addition would give 514"


def through_device(
    values: list[float], dtype: torch.dtype = torch.float16, *, back: torch.dtype | None = None
) -> list[float]:
    on_device = torch.tensor(values, dtype=torch.float64).to(dtype).to("spyre")
    return on_device.cpu().to(back or torch.float64).tolist()


def test_fp16_round_trip_drops_one_bit() -> None:
    assert through_device([1 + 2**-10, 1 + 3 * 2**-10, 1 + 2**-9]) == [1.0, 1 + 2**-8, 1 + 2**-9]


def test_carry_out_of_the_fp16_range_saturates() -> None:
    assert through_device([65504.0, -65504.0]) == [65472.0, -65472.0]


def test_subnormals_are_halved_in_each_direction() -> None:
    smallest, normal = 2.0**-24, 2.0**-14
    assert through_device([smallest, 2.0**-15, normal]) == [0.0, 2.0**-17, normal]


def test_bf16_subnormals_of_fp16_are_unaffected() -> None:
    assert through_device([2.0**-15, 2.0**-20], torch.bfloat16) == [2.0**-15, 2.0**-20]


def test_minus_infinity_is_finite_on_the_device_and_returns() -> None:
    assert through_device([-math.inf]) == [-math.inf]


def test_nan_returns_as_nan() -> None:
    assert math.isnan(through_device([math.nan])[0])


def test_bf16_keeps_values_beyond_fp16() -> None:
    assert through_device([1e6, 2.0**30], torch.bfloat16) == [float(torch.tensor(1e6).bfloat16()), 2.0**30]


def test_fp32_is_exact() -> None:
    values = [1 + 2**-23, 3e38, -1e-30]
    assert through_device(values, torch.float32) == [float(torch.tensor(v, dtype=torch.float32)) for v in values]


def test_int64_wraps_to_int32() -> None:
    x = torch.tensor([5, -7, 2**31 + 5, 2**40 + 3])
    assert x.to("spyre").cpu().tolist() == [5, -7, -(2**31) + 5, 3]


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int8])
def test_other_dtypes_survive(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    assert torch.equal(x.to("spyre").cpu(), x)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 64)])
def test_zero_length_copies_do_nothing(shape: tuple[int, ...]) -> None:
    """D6.3: older builds died here, newer ones return early."""
    assert torch.empty(shape, dtype=torch.float16).to("spyre").cpu().shape == shape


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128])
def test_refused_dtypes(dtype: torch.dtype) -> None:
    with pytest.raises(RuntimeError, match="Spyre backend does not support dtype"):
        torch.ones(2, dtype=dtype).to("spyre")
    with pytest.raises(RuntimeError, match="Spyre backend does not support dtype"):
        torch.ones(2, dtype=dtype, device="spyre")
