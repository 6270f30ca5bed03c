"""What PyTorch's device-generic suites ask of every device, through its test base for PrivateUse1.

The suites themselves are not part of PyTorch's wheel; their operator and module samples are (``tests/opinfo``), and so
are the lists of autocast (``test_autocast``). These templates ask in the same way for what ``test_torch``,
``test_tensor_creation_ops``, ``test_view_ops``, ``test_type_promotion`` and ``test_nn`` ask about devices. What the
card has not is skipped with its reason.
"""
# ruff: noqa: PT009, PT027 -- PyTorch's TestCase compares tensors

from __future__ import annotations

import copy
import gc
import unittest
import weakref

import torch
from torch.testing._internal.common_device_type import (
    deviceCountAtLeast,
    dtypes,
    instantiate_device_type_tests,
    onlyPRIVATEUSE1,
)
from torch.testing._internal.common_dtype import all_types_and_complex_and
from torch.testing._internal.common_utils import TestCase, parametrize

HELD = (torch.float16, torch.bfloat16, torch.float32, torch.int64, torch.int32, torch.int8, torch.bool)
REFUSED = tuple(
    dtype for dtype in all_types_and_complex_and(torch.half, torch.bfloat16, torch.bool) if dtype not in HELD
)
FACTORIES = {
    "ones": lambda **to: torch.ones(2, 3, **to),
    "zeros": lambda **to: torch.zeros(2, 3, **to),
    "full": lambda **to: torch.full((2, 3), 1, **to),
    "arange": lambda **to: torch.arange(6, **to),
    "eye": lambda **to: torch.eye(3, **to),
    "tensor": lambda **to: torch.tensor([[1, 0], [1, 1]], **to),
    "scalar": lambda **to: torch.scalar_tensor(1, **to),
}
VIEWS = {
    "select": lambda t: t.select(0, 1),
    "narrow": lambda t: t.narrow(1, 1, 2),
    "transpose": lambda t: t.mT,
    "permute": lambda t: t.permute(1, 0),
    "expand": lambda t: t.expand(2, 4, 6),
    "view": lambda t: t.view(2, 2, 6),
    "unflatten": lambda t: t.unflatten(1, (2, 3)),
    "chunk": lambda t: t.chunk(2, 1)[1],
    "diagonal": lambda t: t.diagonal(),
    "as_strided": lambda t: t.as_strided((2, 2), (6, 1), 2),
    "unbind": lambda t: t.unbind(0)[2],
    "detach": lambda t: t.detach(),
    "basic index": lambda t: t[1:3, ::2],
}


class TestCreation(TestCase):
    @dtypes(*HELD)
    @parametrize("name", sorted(FACTORIES))
    def test_factories(self, device, dtype, name):
        if name == "arange" and dtype == torch.bool:
            self.skipTest("arange has no bool on any device")
        made = FACTORIES[name](dtype=dtype, device=device)
        self.assertEqual(made.device, torch.device(device))
        self.assertEqual(made.cpu(), FACTORIES[name](dtype=dtype))

    @dtypes(*REFUSED)
    def test_dtypes_that_the_card_has_not(self, device, dtype):
        with self.assertRaisesRegex(RuntimeError, f"does not support dtype {dtype}"):
            torch.ones(2, dtype=dtype, device=device)
        with self.assertRaisesRegex(RuntimeError, "does not support dtype"):
            torch.ones(2, dtype=dtype).to(device)

    def test_like_and_new_follow_the_tensor(self, device):
        x = torch.ones(2, 3, dtype=torch.float16, device=device)
        for made in (torch.empty_like(x), torch.zeros_like(x), torch.rand_like(x), x.new_ones(2), x.new_empty(0)):
            self.assertEqual((made.device, made.dtype), (x.device, x.dtype))
        self.assertEqual(torch.empty_like(x, device="cpu").device.type, "cpu")
        self.assertEqual(x.new_tensor([1.0]).device, x.device)

    def test_the_default_device(self, device):
        with torch.device(device):
            self.assertEqual(torch.empty(1).device, torch.device(device))
            self.assertEqual(torch.nn.Linear(2, 2).weight.device, torch.device(device))
        self.assertEqual(torch.empty(1).device.type, "cpu")

    def test_layouts_that_the_card_has_not(self, device):
        for make in (
            lambda: torch.eye(3).to_sparse().to(device),
            lambda: torch.empty(2, 2, layout=torch.sparse_coo, device=device),
        ):
            with self.assertRaises((RuntimeError, NotImplementedError)):
                make()

    @unittest.skip("the card has neither complex numbers nor float64 (D1.6): the suites' complex views have no place")
    def test_complex_views(self, device):
        raise AssertionError

    @deviceCountAtLeast(1)
    def test_devices(self, devices):
        for one in devices:
            self.assertEqual(torch.ones(1, device=one).device, torch.device(one))


class TestViews(TestCase):
    @dtypes(torch.float16, torch.float32, torch.int64)
    @parametrize("name", sorted(VIEWS))
    def test_views(self, device, dtype, name):
        host = torch.arange(24).reshape(4, 6).to(dtype)
        base = host.to(device)
        view, expected = VIEWS[name](base), VIEWS[name](host)
        self.assertEqual(view.cpu(), expected)
        self.assertEqual((view.stride(), view.storage_offset()), (expected.stride(), expected.storage_offset()))
        self.assertEqual(view._base is not None, expected._base is not None)
        self.assertEqual(view.untyped_storage()._cdata, base.untyped_storage()._cdata)
        if name != "expand":
            view.fill_(1)
            expected.fill_(1)
            self.assertEqual(base.cpu(), host)

    def test_versions_count_writes(self, device):
        x = torch.zeros(4, device=device)
        view, before = x[1:], x._version
        view.fill_(1)
        self.assertEqual(x._version, before + 1)
        self.assertEqual(view._version, x._version)


class TestTensors(TestCase):
    @dtypes(*HELD)
    def test_conversions(self, device, dtype):
        x = torch.tensor([0, 1, 1], dtype=dtype)
        for moved in (x.to(device), x.spyre(), x.to(device, dtype), x.to(torch.empty(0, dtype=dtype, device=device))):
            self.assertEqual(moved.device, torch.device(device))
            self.assertEqual(moved.cpu(), x)
        on_device = x.to(device)
        self.assertIs(on_device.to(device), on_device)
        self.assertIsNot(on_device.to(device, copy=True), on_device)

    @dtypes(*HELD)
    def test_items(self, device, dtype):
        x = torch.tensor([0, 1], dtype=dtype, device=device)
        self.assertEqual(x[1].item(), torch.ones((), dtype=dtype).item())
        self.assertEqual(x.tolist(), torch.tensor([0, 1], dtype=dtype).tolist())

    def test_tensors_of_two_devices(self, device):
        x = torch.ones(64, 64, dtype=torch.float16, device=device)
        for mixed in (lambda: x + x.cpu(), lambda: x @ x.cpu(), lambda: torch.cat([x, x.cpu()])):
            with self.assertRaisesRegex(RuntimeError, "device"):
                mixed()
        self.assertEqual((x + torch.tensor(1.0)).device, x.device)
        self.assertEqual(x.cpu().copy_(x), x.cpu())

    def test_attributes_and_references(self, device):
        x = torch.ones(2, device=device)
        x.note = "kept"
        reference = weakref.ref(x)
        other = copy.copy(x)
        self.assertEqual(other.untyped_storage().data_ptr(), x.untyped_storage().data_ptr())
        self.assertEqual(copy.deepcopy(x).cpu(), x.cpu())
        del x
        gc.collect()
        self.assertIsNone(reference())

    def test_swap_and_set_data(self, device):
        a, b = torch.ones(2, device=device), torch.zeros(3, device=device)
        torch.utils.swap_tensors(a, b)
        self.assertEqual((a.cpu(), b.cpu()), (torch.zeros(3), torch.ones(2)))
        a.data = b
        self.assertEqual(a.untyped_storage().data_ptr(), b.untyped_storage().data_ptr())

    @onlyPRIVATEUSE1
    def test_names_of_the_device(self, device):
        x = torch.ones(2, device=device)
        self.assertTrue(x.is_spyre)
        self.assertFalse(x.is_cuda or x.is_cpu or x.is_meta)
        self.assertEqual(x.get_device(), torch.device(device).index)
        self.assertEqual(torch.device("spyre").type, "spyre")
        self.assertIn("device='spyre:0'", repr(x))

    def test_sizes_that_no_card_has(self, device):
        with self.assertRaises(torch.OutOfMemoryError):
            torch.empty(1 << 40, device=device)
        for size in ((1 << 62,), (1 << 40, 1 << 40)):
            with self.assertRaises(RuntimeError):
                torch.empty(size, device=device)
        self.assertEqual(torch.ones(2, device=device).cpu(), torch.ones(2))


class TestModules(TestCase):
    def test_modules_move_and_keep_ties(self, device):
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        module[1].weight = module[0].weight
        module.register_buffer("table", torch.ones(2))
        # PyTorch unties what it moves to a PrivateUse1 device, unless it swaps tensors.
        torch.__future__.set_swap_module_params_on_conversion(True)
        self.addCleanup(torch.__future__.set_swap_module_params_on_conversion, False)
        module.to(device)
        self.assertIs(module[1].weight, module[0].weight)
        self.assertTrue(module.table.is_spyre and module[0].bias.is_spyre)
        state = module.state_dict()
        twin = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
        twin.register_buffer("table", torch.zeros(2))
        twin.load_state_dict(state)
        self.assertEqual(twin.table, torch.ones(2))
        self.assertEqual(twin[0].weight.device.type, "cpu")

    def test_modules_made_of_meta_tensors(self, device):
        with torch.device("meta"):
            module = torch.nn.Linear(4, 4)
        module.to_empty(device=device)
        self.assertTrue(module.weight.is_spyre)
        with torch.no_grad():
            module.weight.fill_(2.0)
        self.assertEqual(module.weight.cpu(), torch.full((4, 4), 2.0))


for template in (TestCreation, TestViews, TestTensors, TestModules):
    instantiate_device_type_tests(template, globals(), only_for="privateuse1")
