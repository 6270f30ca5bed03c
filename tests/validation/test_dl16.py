"""The validator's own number format, against exact arithmetic and against the backend's rounding."""

from __future__ import annotations

import math

import pytest
import torch

from hf_adapters.validation import dl16

LARGEST = (1 + 510 / 512) * 2.0**32
SMALLEST = (1 + 1 / 512) * 2.0**-31


def nearest(value: float) -> float:
    """Round to DL16 with exact integer arithmetic; independent of any tensor code."""
    if math.isnan(value):
        return math.nan
    magnitude = abs(value)
    if magnitude <= SMALLEST / 2:
        return 0.0
    if magnitude < SMALLEST:
        return math.copysign(SMALLEST, value)
    unit = 2.0 ** (math.floor(math.log2(magnitude)) - 9)
    rounded = round(magnitude / unit) * unit
    return math.copysign(rounded, value) if rounded <= LARGEST else math.nan


@pytest.mark.parametrize(
    "value",
    [
        0.0,
        1.0,
        -1.0,
        1 + 2**-10,
        1 + 3 * 2**-10,
        0.5903,
        -2.002,
        65504.0,
        1e6,
        LARGEST,
        9e9,
        SMALLEST,
        SMALLEST * 0.6,
        SMALLEST * 0.4,
        -3e-10,
        1e-30,
    ],
)
def test_rounding_is_to_nearest_even(value: float) -> None:
    x = torch.tensor([value])
    expected = nearest(float(x))
    for actual in (float(dl16.rounded(x)), float(dl16.round_in_torch_(x.clone(), dl16.numerics()))):
        assert actual == expected or (math.isnan(actual) and math.isnan(expected))


def test_torch_rounding_agrees_with_the_backend_on_random_bits() -> None:
    _C = pytest.importorskip("spyre_backend._C")
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (200_000,), generator=generator, dtype=torch.int64).to(torch.int32)
    x = bits.view(torch.float32)
    ours, theirs = dl16.round_in_torch_(x.clone(), dl16.numerics()), _C.dl16_round(x)
    differ = ~((ours == theirs) | (ours.isnan() & (theirs.isnan() | theirs.isinf())))
    # Below the smallest number only the tie at half of it is open; the sources say nothing about it.
    assert bool((x[differ].abs() < SMALLEST).all())
    assert int(differ.sum()) < 50


def test_host_values_arrive_as_the_device_holds_them() -> None:
    host = torch.tensor([1.0, 65504.0, float("-inf"), 2.0**-24, 2.0**-15, 2.0**-14], dtype=torch.float16)
    device = dl16.from_host(host)
    assert device.tolist() == [1.0, 65472.0, -33521664.0, 2.0**-25, 2.0**-16, 2.0**-14]


def test_sums_lose_what_a_blocked_accumulator_loses() -> None:
    # 64 blocks of 64 ones: the partial sums are exact, and so are the sums of up to 1024 in 9 fraction bits.
    assert float(dl16.sum_last(torch.ones(1, 512))) == 512.0
    # Beyond, adding a partial sum of 1 to 1024 is lost, where a float32 sum keeps it.
    x = torch.cat([torch.full((64,), 16.0), torch.zeros(63), torch.ones(1)]).unsqueeze(0)
    assert float(x.sum()) == 1025.0
    assert float(dl16.sum_last(x)) == 1024.0


def test_matmul_in_blocks_equals_the_sum_of_its_blocks() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 200, generator=generator), torch.randn(200, 7, generator=generator)
    total = torch.zeros(5, 7)
    for start in range(0, 200, 64):
        partial = dl16.rounded(a[:, start : start + 64] @ b[start : start + 64])
        total = dl16.rounded(total + partial) if start else partial
    assert torch.equal(dl16.matmul(a, b), total)
