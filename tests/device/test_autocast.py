"""Autocast: PyTorch's own lists of what it lowers, as far as the device lowers it."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.autocast_test_lists import AutocastTestLists
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, parametrize
from torch.utils import _pytree as pytree

from spyre_backend.device.autocast import LOWERED

LISTS = AutocastTestLists("cpu")
LISTED = {name: args for name, args, *_ in LISTS.torch_fp16 if name in LOWERED} | {
    name: args for name, args, *_ in LISTS.nn_fp16 if name in LOWERED
}


def on(device: str, args: tuple[object, ...]) -> tuple[object, ...]:
    """PyTorch's lists hold tensors of 8 elements a side; 64 fill a stick."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        return torch.ones([64] * tensor.ndim, dtype=tensor.dtype).to(device)

    return pytree.tree_map_only(torch.Tensor, moved, args)


def test_the_lists_cover_what_is_lowered() -> None:
    assert set(LISTED) == set(LOWERED)


class TestAutocast(TestCase):
    @parametrize("name", sorted(LISTED))
    @parametrize("dtype", (torch.float16, torch.bfloat16))
    def test_products_are_lowered(self, device, name, dtype):
        function = getattr(torch, name, None) or getattr(torch.nn.functional, name)
        args = on(device, LISTED[name])
        assert args[0].dtype == torch.float32
        with torch.autocast("spyre", dtype=dtype):
            assert function(*args).dtype == dtype
        with torch.autocast("spyre", dtype=dtype), torch.autocast("spyre", enabled=False):
            assert not torch.is_autocast_enabled("spyre")

    def test_everything_else_keeps_its_dtype(self, device):
        x = torch.ones(64, 64, device=device)
        with torch.autocast("spyre", dtype=torch.float16):
            for result in (x + x, x.exp(), x.sum(-1), torch.softmax(x, -1), x.t(), x.clone()):
                assert result.dtype == torch.float32

    def test_the_default_dtype_and_the_context(self, device):
        assert torch.spyre.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]
        with torch.autocast("spyre"):
            assert torch.is_autocast_enabled("spyre")
            assert torch.get_autocast_dtype("spyre") in torch.spyre.get_amp_supported_dtype()
        assert not torch.is_autocast_enabled("spyre")

    def test_a_dtype_that_the_device_does_not_multiply_in(self, device):
        with pytest.warns(UserWarning, match="not supported"), torch.autocast("spyre", dtype=torch.float64):
            assert not torch.is_autocast_enabled("spyre")


instantiate_device_type_tests(TestAutocast, globals(), only_for="privateuse1")
