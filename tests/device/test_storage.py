"""Storages of device tensors: identity, sharing, size, conversion."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.multiprocessing
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int8, torch.bool)


class TestStorage(TestCase):
    @dtypes(*DTYPES)
    def test_device_and_size(self, device, dtype):
        storage = torch.ones(6, dtype=dtype, device=device).untyped_storage()
        assert storage.is_spyre
        assert storage.device == torch.device(device)
        assert storage.nbytes() == 6 * dtype.itemsize
        assert len(storage) == storage.size() == storage.nbytes()

    @dtypes(*DTYPES)
    def test_to_the_host_and_back(self, device, dtype):
        host = torch.tensor([1, 0, 1, 1], dtype=dtype)
        storage = host.to(device).untyped_storage()
        assert storage.cpu().tolist() == host.untyped_storage().tolist()
        again = torch.empty(0, dtype=dtype, device=device).set_(host.untyped_storage().spyre(), 0, (4,), (1,))
        assert again.is_spyre
        assert torch.equal(again.cpu(), host)

    def test_sharing(self, device):
        x = torch.arange(12, dtype=torch.float16).to(device)
        view = x.view(3, 4)[1:]
        assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert view.untyped_storage()._cdata == x.untyped_storage()._cdata
        other = torch.empty(0, dtype=torch.float16, device=device).set_(x)
        assert other.is_set_to(x)
        other.zero_()
        assert x.cpu().abs().sum() == 0

    def test_clones_and_copies_are_separate(self, device):
        x = torch.ones(4, dtype=torch.float16, device=device)
        twin = x.untyped_storage().clone()
        x.zero_()
        assert twin.cpu().tolist() == torch.ones(4, dtype=torch.float16).untyped_storage().tolist()
        x.untyped_storage().copy_(twin)
        assert x.cpu().tolist() == [1.0] * 4

    def test_resizing_keeps_what_was_there(self, device):
        x = torch.ones(4, dtype=torch.float16, device=device)
        x.untyped_storage().resize_(16)
        assert x.untyped_storage().nbytes() == 16
        assert x.cpu().tolist() == [1.0] * 4
        assert x.resize_(8)[:4].cpu().tolist() == [1.0] * 4
        x.untyped_storage().resize_(0)
        assert x.untyped_storage().nbytes() == 0

    def test_typed_storages(self, device):
        typed = torch.ones(3, device=device).storage()
        assert typed.device == torch.device(device)
        assert typed.cpu().tolist() == [1.0] * 3

    def test_bytes_are_read_through_the_host_and_written_as_a_whole(self, device):
        storage = torch.ones(4, dtype=torch.float16).to(device).untyped_storage()
        for part in (lambda: storage[2], storage.tolist, lambda: storage.fill_(0)):
            with pytest.raises(RuntimeError, match=r"can only be copied as a whole; read them with \.cpu\(\)"):
                part()
        assert storage.cpu().tolist() == torch.ones(4, dtype=torch.float16).untyped_storage().tolist()

    def test_processes_do_not_share_device_memory(self, device):
        with pytest.raises(RuntimeError, match="only available on CPU"):
            ForkingPickler.dumps(torch.ones(4, device=device))


instantiate_device_type_tests(TestStorage, globals(), only_for="privateuse1")
