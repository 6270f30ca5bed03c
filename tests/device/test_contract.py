"""PyTorch's contract for devices, through its own test base for PrivateUse1; the other modules here go into detail."""
# ruff: noqa: PT009 -- PyTorch's TestCase compares tensors

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.common_device_type import PrivateUse1TestBase, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase


class TestDeviceContract(TestCase):
    def test_the_test_base_knows_the_device(self, device: str) -> None:
        self.assertEqual(torch.device(device).type, "spyre")
        self.assertIs(PrivateUse1TestBase.device_mod, torch.spyre)

    def test_creation_and_conversion(self, device: str) -> None:
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.bool):
            x = torch.ones(3, 5, device=device, dtype=dtype)
            self.assertEqual(x.cpu(), torch.ones(3, 5, dtype=dtype))
            self.assertEqual(x.to("cpu").to(device).device, x.device)

    def test_views_share_storage(self, device: str) -> None:
        x = torch.arange(12, device=device, dtype=torch.int32).view(3, 4)
        for view in (x.t(), x[1:], x.unsqueeze(0), x.expand(2, 3, 4), x.unfold(1, 2, 1), x.narrow(1, 1, 2)):
            self.assertEqual(view.untyped_storage().data_ptr(), x.untyped_storage().data_ptr())

    def test_module_conversion(self, device: str) -> None:
        module = torch.nn.Linear(64, 64).half().to(device)
        self.assertTrue(all(p.is_spyre for p in module.parameters()))
        self.assertEqual(module(torch.ones(2, 64, dtype=torch.float16, device=device)).device, torch.device(device))

    def test_generator(self, device: str) -> None:
        generator = torch.Generator(device=device).manual_seed(3)
        first = torch.rand(5, device=device, generator=generator).cpu()
        self.assertEqual(generator.device, torch.device(device))
        self.assertEqual(torch.rand(5, device=device, generator=generator.manual_seed(3)).cpu(), first)

    def test_accelerator_api(self, device: str) -> None:
        self.assertEqual(torch.accelerator.current_device_index(), 0)
        self.assertEqual(torch.accelerator.memory_allocated(), torch.spyre.memory_allocated())
        torch.accelerator.reset_peak_memory_stats()
        self.assertEqual(torch.accelerator.max_memory_allocated(), torch.spyre.max_memory_allocated())
        torch.accelerator.empty_cache()
        torch.accelerator.synchronize()
        free, total = torch.accelerator.get_memory_info()
        self.assertEqual((free, total), torch.spyre.mem_get_info())

    def test_summary_names_what_it_counts(self, device: str) -> None:
        text = torch.spyre.memory_summary(device)
        for title in ("Allocated memory", "Reserved memory", "from large pool", "largest free block"):
            self.assertIn(title, text)

    def test_quantiser_has_no_place_here(self, device: str) -> None:
        with pytest.raises(RuntimeError):
            torch.quantize_per_tensor(torch.ones(2, device=device), 0.1, 0, torch.qint8)


instantiate_device_type_tests(TestDeviceContract, globals(), only_for="spyre")
