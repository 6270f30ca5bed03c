"""What each dtype becomes on the device and back (D1.5, D1.6)."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import warnings
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from spyre_backend import _C, capabilities
from spyre_backend.device import numerics
from spyre_backend.errors import SpyreUnsupported, UnsupportedDtype
from spyre_backend.runtime.memory import device_access, host_view
from tests.device.reference import MERGED, nearest_codes, run_python, value_of


@pytest.fixture
def restored_numerics() -> Iterator[None]:
    torch.empty(1, device="spyre")
    yield
    numerics.apply_current()


def every_pattern(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(dtype)


def codes_on_device(host: torch.Tensor) -> np.ndarray:
    device = host.to("spyre")
    with device_access():
        return host_view(device).numpy().astype(np.int64) & 0xFFFF


def expected_half_codes() -> np.ndarray:
    host = every_pattern(torch.float16)
    values = host.double().numpy()
    codes = nearest_codes(values)
    codes = np.where(np.abs(values) == 65504, 0x5DFF, codes & 0x7FFF)
    subnormal = np.abs(values) < 2.0**-14
    units = np.abs(values) * 2.0**24
    codes = np.where(subnormal, nearest_codes(np.floor(units / 2) * 2.0**-24), codes)
    codes = np.where(np.isinf(values), 0x6FFF, codes)
    codes = np.where(np.signbit(values), codes | 0x8000, codes)
    return np.where(np.isnan(values), MERGED, codes)


def test_every_float16_to_the_device() -> None:
    np.testing.assert_array_equal(codes_on_device(every_pattern(torch.float16)), expected_half_codes())


def test_every_bfloat16_to_the_device() -> None:
    values = every_pattern(torch.bfloat16).double().numpy()
    codes = nearest_codes(values)
    saturated = np.isfinite(values) & (codes == MERGED)
    expected = np.where(saturated, 0x7FFE | np.where(values < 0, 0x8000, 0), codes)
    np.testing.assert_array_equal(codes_on_device(every_pattern(torch.bfloat16)), expected)


def device_holding_every_code(dtype: torch.dtype) -> torch.Tensor:
    device = torch.empty(65536, dtype=dtype, device="spyre")
    with device_access():
        host_view(device).copy_(every_pattern(torch.int16))
    return device


def test_every_code_to_float32_stays_finite() -> None:
    device = device_holding_every_code(torch.float16)
    expected = np.array([value_of(code) for code in range(65536)])
    np.testing.assert_array_equal(device.to("cpu", torch.float32).double().numpy(), expected)
    np.testing.assert_array_equal(device.float().cpu().double().numpy(), expected)


def test_every_code_to_float16() -> None:
    host = device_holding_every_code(torch.float16).cpu()
    exact = torch.tensor([value_of(code) for code in range(65536)], dtype=torch.float64)
    plain = exact.to(torch.float16)
    normal = exact.abs() >= 2.0**-14
    torch.testing.assert_close(host[normal], plain[normal], rtol=0, atol=0)
    assert host[MERGED].isnan()
    assert host[0xFFFF].isnan()
    small = ~normal & ~exact.isnan()
    units = (plain[small].double().abs() * 2.0**24 / 2).floor()
    assert torch.equal(host[small].double().abs() * 2.0**24, units)


def test_every_code_to_bfloat16_rounds_to_nearest() -> None:
    host = device_holding_every_code(torch.bfloat16).cpu()
    exact = torch.tensor([value_of(code) for code in range(65536)])
    torch.testing.assert_close(host, exact.to(torch.bfloat16), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("sent", "received"),
    [(65504.0, 65472.0), (-65504.0, -65472.0), (float("-inf"), float("-inf")), (2.0**-20, 2.0**-22), (2.0**-24, 0.0)],
)
def test_round_trip_of_float16(sent: float, received: float) -> None:
    assert torch.tensor([sent], dtype=torch.float16).to("spyre").cpu().item() == received


def test_minus_infinity_is_a_finite_number_on_the_device() -> None:
    device = torch.tensor([float("-inf")], dtype=torch.float16).to("spyre")
    assert device.float().item() == -33_521_664.0


def test_range_beyond_float16_survives_until_the_host_asks_for_float16() -> None:
    device = torch.tensor([1e6], dtype=torch.bfloat16).to("spyre").to(torch.float16)
    assert device.to("cpu", torch.float32).item() == pytest.approx(1e6, rel=4e-3)
    assert device.cpu().item() == float("inf")


@pytest.mark.usefixtures("restored_numerics")
def test_switches_change_the_conversion() -> None:
    _C.set_copy_numerics(half_rounding="truncate", halve_subnormals=False, saturate_half=False)
    host = torch.tensor([1 + 3 / 1024, 65504.0, 2.0**-24], dtype=torch.float16)
    assert host.to("spyre").float().tolist() == [1 + 2 / 1024, 65472.0, 2.0**-24]
    _C.set_copy_numerics(half_rounding="half-up", merged_is_infinity=True, truncate_bfloat16=True)
    assert host[:1].to("spyre").item() == 1 + 4 / 1024
    assert torch.tensor([float("nan")], dtype=torch.float16).to("spyre").item() == float("inf")
    device = torch.tensor([18.09375]).to("spyre").to(torch.bfloat16)
    assert device.item() == 18.0


def test_bfloat16_and_float16_share_codes_on_the_device() -> None:
    half = torch.randn(50).half().to("spyre")
    with device_access():
        assert torch.equal(host_view(half), host_view(half.bfloat16()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int8, torch.bool, torch.float8_e4m3fn])
def test_other_dtypes_come_back_unchanged(dtype: torch.dtype) -> None:
    host = torch.tensor([0, 1, 1, 0, 1], dtype=torch.float32).to(dtype)
    assert torch.equal(host.to("spyre").cpu().float(), host.float())


def test_int64_wraps_to_int32() -> None:
    host = torch.tensor([2**31 - 1, 2**31, -(2**31), 2**40 + 7])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        device = host.to("spyre")
    assert device.dtype == torch.int64
    assert device.cpu().tolist() == [2**31 - 1, -(2**31), -(2**31), 7]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64, torch.complex128, torch.uint8, torch.int16])
def test_refused_dtypes_say_so(dtype: torch.dtype) -> None:
    with pytest.raises(SpyreUnsupported, match=f"^Spyre backend does not support dtype {dtype}") as caught:
        torch.ones(3, dtype=dtype).to("spyre")
    assert caught.value.rule == "dtype-unsupported"
    assert isinstance(caught.value, RuntimeError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, UnsupportedDtype)
    assert str(again) == str(caught.value) == str(copy.copy(caught.value))


def test_int64_warning_comes_once_and_can_be_silenced() -> None:
    script = (
        "import torch, warnings\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    torch.tensor([1, 2]).to('spyre'); torch.zeros(2, dtype=torch.int64, device='spyre')\n"
        "print(len(seen), *(str(w.message)[:64] for w in seen))\n"
    )
    loud = run_python(script)
    assert loud.stdout.strip() == "1 Backend Spyre does not support int64; downcasting to int32. Valu"
    assert run_python(script, TORCH_SPYRE_DOWNCAST_WARN="0").stdout.strip() == "0"


def test_copies_follow_the_release_in_force(monkeypatch: pytest.MonkeyPatch, restored_numerics: None) -> None:
    stock = capabilities.current()
    kept = dataclasses.replace(stock, numerics=dataclasses.replace(stock.numerics, halve_subnormals=False))
    subnormal = torch.tensor([2.0**-20], dtype=torch.float16)
    halved = subnormal.to("spyre").cpu()
    monkeypatch.setattr(capabilities, "load", lambda name: kept if name == "other" else stock)
    with capabilities.use("other"):
        assert torch.equal(subnormal.to("spyre").cpu(), subnormal)
    assert torch.equal(subnormal.to("spyre").cpu(), halved)
    assert not torch.equal(halved, subnormal)
