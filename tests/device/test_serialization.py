"""Saving, loading, copying and printing device tensors."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from tests.device.reference import run_python

VALUES = {
    torch.float16: [1.5, -2.25, 65472.0, 0.0],
    torch.bfloat16: [1.5, -2.25, 1e6, 0.0],
    torch.float32: [1.5, 1e30, -3.0, 0.1],
    torch.int64: [1, -2, 2**31 - 1, 0],
    torch.bool: [True, False, True, True],
}
DTYPES = list(VALUES)


def sample(dtype: torch.dtype) -> torch.Tensor:
    return torch.tensor(VALUES[dtype], dtype=dtype)


def saved(value: object, **options: bool) -> io.BytesIO:
    buffer = io.BytesIO()
    torch.save(value, buffer, **options)
    buffer.seek(0)
    return buffer


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", ["spyre", "cpu", None])
def test_a_file_holds_host_numbers(dtype: torch.dtype, where: str | None, zipped: bool) -> None:
    host = sample(dtype)
    buffer = saved(host.to("spyre"), _use_new_zipfile_serialization=zipped)
    loaded = torch.load(buffer, map_location=where, weights_only=True)
    assert loaded.device.type == (where or "spyre")
    assert loaded.dtype == dtype
    assert torch.equal(loaded.cpu(), host)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_host_file_loads_onto_the_device(dtype: torch.dtype) -> None:
    loaded = torch.load(saved(sample(dtype)), map_location="spyre", weights_only=True)
    assert loaded.is_spyre
    assert torch.equal(loaded.cpu(), sample(dtype))


def test_views_and_shared_storage_survive() -> None:
    base = torch.arange(12, dtype=torch.float16).reshape(3, 4).to("spyre")
    both = torch.load(saved({"base": base, "part": base[1:, ::2]}), weights_only=True)
    assert torch.equal(both["part"].cpu(), base[1:, ::2].cpu())
    both["base"].zero_()
    assert both["part"].cpu().abs().sum() == 0


def test_a_file_saved_on_the_device_loads_without_it(tmp_path) -> None:
    path = tmp_path / "weights.pt"
    module = torch.nn.Linear(3, 2).half().to("spyre")
    torch.save(module.state_dict(), path)
    script = (
        f"import torch; state = torch.load({str(path)!r}, map_location='cpu', weights_only=True)\n"
        "print(hasattr(torch, 'spyre'), state['bias'].tolist())"
    )
    result = run_python(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert result.stdout.strip() == f"False {module.bias.tolist()}", result.stderr


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))], ids=["copy", "pickle"])
def test_deepcopy_and_pickle(dtype: torch.dtype, duplicate) -> None:
    device = sample(dtype).to("spyre")
    twin = duplicate(device)
    assert twin.is_spyre
    assert twin.data_ptr() != device.data_ptr()
    assert torch.equal(twin.cpu(), device.cpu())
    twin.zero_()
    assert torch.equal(device.cpu(), sample(dtype))


def test_deepcopy_keeps_what_float16_cannot_hold() -> None:
    device = torch.tensor([1e6, 1.0], dtype=torch.bfloat16).to("spyre").to(torch.float16)
    assert copy.deepcopy(device).float().tolist()[0] == pytest.approx(1e6, rel=4e-3)


def test_modules_deepcopy_with_parameters_and_ties() -> None:
    module = torch.nn.ModuleList([torch.nn.Linear(3, 3, bias=False), torch.nn.Linear(3, 3, bias=False)])
    module.half().to("spyre")
    module[1].weight = module[0].weight
    twin = copy.deepcopy(module)
    assert twin[0].weight is twin[1].weight
    assert isinstance(twin[0].weight, torch.nn.Parameter)
    assert torch.equal(twin[0].weight.cpu(), module[0].weight.cpu())


def test_storage_methods() -> None:
    storage = torch.tensor([1.0, 2.0], dtype=torch.float16).to("spyre").untyped_storage()
    assert storage.device.type == "spyre"
    assert storage.nbytes() == 4
    assert bytes(storage.cpu().tolist()) == bytes(
        torch.tensor([1.0, 2.0], dtype=torch.float16).untyped_storage().tolist()
    )
    twin = storage.clone()
    rebuilt = torch.empty(0, dtype=torch.float16, device="spyre").set_(twin, 0, (2,), (1,))
    assert rebuilt.tolist() == [1.0, 2.0]


def test_printing_shows_values_and_counts_no_fallback() -> None:
    torch.spyre.reset_fallback_counts()
    text = repr(torch.tensor([[1.5, 2.0]], dtype=torch.float16).to("spyre"))
    assert text == "tensor([[1.5000, 2.0000]], device='spyre:0', dtype=torch.float16)"
    assert "requires_grad=True" in repr(torch.nn.Parameter(torch.ones(2).to("spyre")))
    assert repr(torch.zeros(0, device="spyre")) == "tensor([], device='spyre:0')"
    assert "..." in str(torch.zeros(5000, device="spyre"))
    assert torch.spyre.fallback_counts() == {}


def test_numpy_asks_for_the_host() -> None:
    with pytest.raises(TypeError, match="can't convert spyre"):
        torch.ones(2, device="spyre").numpy()
