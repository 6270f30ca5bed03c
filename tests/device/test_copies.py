"""Copies between host and device, and views on the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from spyre_backend.errors import SpyreUnsupported

View = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, View] = {
    "whole": lambda t: t,
    "transposed": lambda t: t.transpose(0, 2),
    "rows": lambda t: t[1:3],
    "columns": lambda t: t[..., 1::2],
    "selected": lambda t: t[:, 2],
    "expanded": lambda t: t[:1].expand(5, -1, -1),
    "flat": lambda t: t.reshape(-1)[3:17],
    "unsqueezed": lambda t: t.unsqueeze(1).permute(3, 0, 1, 2),
    "diagonal": lambda t: t.diagonal(0, 0, 1),
    "unfolded": lambda t: t.unfold(2, 3, 2),
    "empty": lambda t: t[:0],
    "strided": lambda t: t.as_strided((3, 4), (2, 5), 1),
    "split": lambda t: t.view(4, 3, 2, 3).movedim(2, 0),
    "scalar": lambda t: t[1, 1, 1],
}
PER_STICK = {
    torch.float16: 64,
    torch.bfloat16: 64,
    torch.float32: 32,
    torch.int32: 32,
    torch.int8: 128,
    torch.bool: 64,
    torch.int64: 32,
}
DTYPES = list(PER_STICK)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def numbers(dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """A [4, 3, 6] tensor of small integers, exact in every dtype of the device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-100, 100, (4, 3, 6), generator=generator).to(dtype)


def begins_on_stick(view: torch.Tensor) -> bool:
    """Whether the device can copy this view to another place on the device (D2.7, #3798)."""
    return view.numel() == 0 or view.storage_offset() % PER_STICK[view.dtype] == 0


def cast_on_device(source: torch.dtype, target: torch.dtype) -> bool:
    return source == target or (source in FLOATS and target in (*FLOATS, torch.bool))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", VIEWS)
def test_views_of_device_tensors_are_views(name: str, dtype: torch.dtype) -> None:
    host = numbers(dtype)
    device = host.to("spyre")
    view, expected = VIEWS[name](device), VIEWS[name](host)
    assert view.stride() == expected.stride()
    assert view.storage_offset() == expected.storage_offset()
    assert view.untyped_storage().data_ptr() == device.untyped_storage().data_ptr()
    assert torch.equal(view.cpu(), expected)
    if begins_on_stick(view):
        assert torch.equal(view.contiguous().cpu(), expected)
        assert torch.equal(view.clone().cpu(), expected)
    else:
        with pytest.raises(SpyreUnsupported, match="requires a stick-aligned storage_offset") as caught:
            view.clone()
        assert (caught.value.rule, caught.value.shapes) == ("storage-offset", (tuple(view.shape),))


@given(
    target=st.sampled_from([name for name in VIEWS if name not in ("expanded", "unfolded", "strided")]),
    dtype=st.sampled_from(DTYPES),
    source_dtype=st.sampled_from(DTYPES),
    route=st.sampled_from(["h2d", "d2h", "d2d"]),
    seed=st.integers(0, 50),
)
def test_copies_into_views_agree_with_the_cpu(
    target: str, dtype: torch.dtype, source_dtype: torch.dtype, route: str, seed: int
) -> None:
    base, filling = numbers(dtype), numbers(source_dtype, seed + 1)
    if route == "d2d" and cast_on_device(source_dtype, dtype):
        assume(begins_on_stick(VIEWS[target](base)) and begins_on_stick(VIEWS[target](filling)))
    expected = base.clone()
    VIEWS[target](expected).copy_(VIEWS[target](filling))
    actual = base.clone() if route == "d2h" else base.to("spyre")
    source = filling if route == "h2d" else filling.to("spyre")
    VIEWS[target](actual).copy_(VIEWS[target](source))
    assert torch.equal(actual.cpu(), expected)


@pytest.mark.parametrize("source", ["cpu", "spyre"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.int64, torch.float32])
def test_copies_broadcast(source: str, dtype: torch.dtype) -> None:
    row = torch.arange(6).to(dtype).to(source)
    device = torch.zeros(4, 3, 6, dtype=dtype, device="spyre")
    device.copy_(row)
    assert torch.equal(device.cpu(), row.cpu().expand(4, 3, 6))
    host = torch.zeros(2, 6, dtype=dtype)
    host.copy_(row)
    assert torch.equal(host, row.cpu().expand(2, 6))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0, 2)])
def test_zero_size_tensors(shape: tuple[int, ...]) -> None:
    device = torch.ones(shape, dtype=torch.float16).to("spyre")
    assert device.shape == shape
    assert device.cpu().shape == shape
    assert device.clone().numel() == 0
    assert torch.empty(0, device="spyre").data_ptr() == 0
    device.copy_(torch.ones(shape))
    torch.zeros(shape, dtype=torch.float16).copy_(device)


def test_overlapping_source_and_same_tensor() -> None:
    device = torch.arange(96, dtype=torch.float32).to("spyre")
    device.copy_(device)
    assert device.tolist() == list(range(96))
    device[32:64].copy_(device[:32])
    assert device.tolist() == [*range(32), *range(32), *range(64, 96)]


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (lambda t: t[1], True),
        (lambda t: t[:, 64:], True),
        (lambda t: t[:, 32:], False),
        (lambda t: t[2:, 1:], False),
    ],
)
def test_copies_on_the_device_begin_on_sticks(make: View, allowed: bool) -> None:
    device = torch.randn(4, 128).half().to("spyre")
    view = make(device)
    fresh = torch.zeros(view.shape, dtype=torch.float16, device="spyre")
    for copying in (lambda: fresh.copy_(view), lambda: view.copy_(fresh), lambda: view.float()):
        if allowed:
            copying()
        else:
            with pytest.raises(SpyreUnsupported, match="is not a multiple of elems_per_stick=64"):
                copying()
    assert torch.equal(view.cpu(), make(device.cpu()))
    view.copy_(torch.ones(view.shape))
    view.zero_()
    assert view.cpu().abs().sum() == 0


def test_rows_of_padded_tensors_begin_inside_a_stick() -> None:
    device = torch.randn(4, 100).half().to("spyre")
    with pytest.raises(SpyreUnsupported, match="100 is not a multiple"):
        device[1].clone()


def test_float64_host_tensors_convert_on_the_way() -> None:
    device = torch.zeros(3, dtype=torch.float16, device="spyre")
    device.copy_(torch.tensor([1.5, 2.5, -3.0], dtype=torch.float64))
    assert device.to("cpu", torch.float64).tolist() == [1.5, 2.5, -3.0]
    assert torch.ones(2, dtype=torch.float64).to("spyre", torch.float16).dtype == torch.float16


def test_item_tolist_bool_and_index() -> None:
    device = torch.tensor([[1.5, -2.0], [0.0, 3.0]], dtype=torch.float16).to("spyre")
    assert device[0, 1].item() == -2.0
    assert device.tolist() == [[1.5, -2.0], [0.0, 3.0]]
    assert bool(device[0, 0])
    assert not bool(device[1, 0])
    assert int(torch.tensor([5], dtype=torch.int32).to("spyre")) == 5
    assert torch.ones((), dtype=torch.bool, device="spyre").item() is True


def test_filling_counts_no_fallback() -> None:
    torch.spyre.reset_fallback_counts()
    device = torch.empty(4, 5, dtype=torch.float16, device="spyre")
    device.fill_(2.5)
    device[1:3, 2:].zero_()
    device[0].fill_(torch.tensor(7.0))
    torch.full((3,), 1.0, device="spyre")
    torch.zeros_like(device)
    assert device.cpu().sum().item() == 5 * 7.0 + 4 * 2.5 + 5 * 2.5
    assert torch.spyre.fallback_counts() == {}


def test_moving_a_module_keeps_parameters_and_buffers() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).half()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module.to("spyre")
    assert {p.device.type for p in module.parameters()} == {"spyre"}
    assert all(isinstance(p, torch.nn.Parameter) for p in module.parameters())
    module.cpu()
    for name, value in module.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=2**-10, atol=0)


def test_device_method_and_predicate() -> None:
    assert torch.ones(2).spyre().is_spyre
    assert not torch.ones(2).is_spyre
    assert torch.device("spyre:0") == torch.ones(1, device="spyre").device


@pytest.mark.parametrize("make", [lambda: torch.ones(2, device="spyre:1"), lambda: torch.ones(2).to("spyre:3")])
def test_there_is_one_device(make: Callable[[], torch.Tensor]) -> None:
    with pytest.raises(RuntimeError, match="one device"):
        make()


def test_resize_and_set() -> None:
    tensor = torch.arange(4, dtype=torch.float16).to("spyre")
    tensor.resize_(6)
    assert tensor[:4].tolist() == [0, 1, 2, 3]
    grown = torch.empty(0, dtype=torch.float16, device="spyre").resize_(3)
    grown.copy_(torch.tensor([1.0, 2.0, 3.0]))
    alias = torch.empty(0, dtype=torch.float16, device="spyre")
    alias.set_(grown.untyped_storage(), 1, (2,), (1,))
    assert alias.tolist() == [2, 3]
    alias.set_(tensor)
    assert alias.data_ptr() == tensor.data_ptr()
    alias.set_()
    assert alias.numel() == 0


def test_sparse_layouts_are_refused() -> None:
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.eye(3).to_sparse().to("spyre")
