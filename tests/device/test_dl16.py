"""The native DL16 kernels against the definition of the format."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spyre_backend import _C
from tests.device.reference import LARGEST, MAGNITUDES, MERGED, nearest_codes, value_of

SMALLEST = (1 + 1 / 512) * 2.0**-31


def encode(values: torch.Tensor) -> np.ndarray:
    return _C.dl16_encode(values).numpy().astype(np.int64) & 0xFFFF


def all_codes() -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16)


def many_floats() -> torch.Tensor:
    """Every code's value, its float32 neighbours, the middles between codes and theirs, and random bit patterns."""
    middles = (MAGNITUDES[:-1] + MAGNITUDES[1:]) / 2
    exact = torch.tensor(np.concatenate([MAGNITUDES, middles]), dtype=torch.float32)
    up = torch.nextafter(exact, torch.tensor(math.inf))
    down = torch.nextafter(exact, torch.tensor(-math.inf))
    bits = torch.randint(-(2**31), 2**31, (400_000,), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
    positive = torch.cat([exact, up, down])
    return torch.cat([positive, -positive, bits.view(torch.float32)])


def test_decode_of_every_code() -> None:
    decoded = _C.dl16_decode(all_codes()).double().numpy()
    expected = np.array([value_of(code) for code in range(65536)])
    np.testing.assert_array_equal(decoded, expected)
    assert np.signbit(decoded[0x8000])
    assert not np.signbit(decoded[0])


def test_decoding_check_of_the_source() -> None:
    assert value_of(0x1000) == 2.0**-23
    assert _C.dl16_decode(torch.tensor([0x1000], dtype=torch.int16)).item() == 2.0**-23


def test_encode_of_decode_is_the_same_code() -> None:
    codes = all_codes()
    back = encode(_C.dl16_decode(codes))
    expected = codes.numpy().astype(np.int64) & 0xFFFF
    expected[0xFFFF] = MERGED  # one merged code, without sign
    np.testing.assert_array_equal(back, expected)


def test_encode_takes_the_nearest_value_and_the_even_code_of_two() -> None:
    values = many_floats()
    np.testing.assert_array_equal(encode(values), nearest_codes(values.double().numpy()))


def test_round_is_decode_of_encode() -> None:
    values = many_floats()
    expected = _C.dl16_decode(_C.dl16_encode(values))
    torch.testing.assert_close(_C.dl16_round(values), expected, rtol=0, atol=0, equal_nan=True)
    in_place = values.clone()
    assert _C.dl16_round_(in_place).data_ptr() == in_place.data_ptr()
    assert torch.equal(in_place.view(torch.int32), expected.view(torch.int32))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (0.0, 0),
        (-0.0, 0x8000),
        (1.0, 31 << 9),
        (SMALLEST, 1),
        (SMALLEST / 2, 0),
        (math.nextafter(SMALLEST / 2 * 1.0000002, 1), 1),
        (2.0**-31, 1),
        (8573157376.0, LARGEST),
        ((1 + 510.5 / 512) * 2.0**32, LARGEST),
        ((1 + 511 / 512) * 2.0**32, MERGED),
        (-1e12, MERGED),
        (math.inf, MERGED),
        (-math.inf, MERGED),
        (math.nan, MERGED),
        (65504.0, (31 + 16) << 9),
    ],
)
def test_edges(value: float, code: int) -> None:
    assert encode(torch.tensor([value])).tolist() == [code]


@pytest.mark.parametrize("make", [lambda t: t.t(), lambda t: t[::2], lambda t: t[:, 1:], lambda t: t[:0]])
def test_round_of_strided_tensors(make) -> None:
    base = torch.randn(6, 5)
    view = make(base)
    expected = _C.dl16_round(view.contiguous())
    assert torch.equal(_C.dl16_round(view), expected)
    _C.dl16_round_(view)
    assert torch.equal(view, expected)


@given(blocks=st.integers(1, 9), inner=st.sampled_from([(), (1,), (3, 5), (2049,)]), seed=st.integers(0, 99))
def test_block_accumulate_rounds_every_step(blocks: int, inner: tuple[int, ...], seed: int) -> None:
    partials = torch.randn(blocks, *inner, generator=torch.Generator().manual_seed(seed)) * 37
    total = _C.dl16_round(partials[0])
    for partial in partials[1:]:
        total = _C.dl16_round(total + _C.dl16_round(partial))
    assert torch.equal(_C.block_accumulate(partials), total)


def test_block_accumulate_differs_from_a_float32_sum() -> None:
    partials = torch.full((100, 1), 1.01)
    assert _C.block_accumulate(partials).item() != pytest.approx(101.0, abs=0.05)


def test_wrong_dtypes_are_refused() -> None:
    with pytest.raises(RuntimeError, match="dl16_round: expected a CPU tensor of dtype Float"):
        _C.dl16_round(torch.ones(3, dtype=torch.float64))
    with pytest.raises(RuntimeError, match=r"\[nblk, ...\]"):
        _C.block_accumulate(torch.empty(0, 4))
