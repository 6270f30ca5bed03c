"""Pinned host memory and non-blocking copies (D2.3: one pinned buffer, then one DMA)."""

from __future__ import annotations

import gc

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from spyre_backend import capabilities
from tests.device.gates import Gate


def test_pinning() -> None:
    plain = torch.arange(6.0)
    pinned = plain.pin_memory()
    assert pinned.is_pinned()
    assert not plain.is_pinned()
    assert torch.equal(pinned, plain)
    assert torch.empty(4, pin_memory=True).is_pinned()
    assert pinned[2:].is_pinned()


def test_as_many_buffers_as_the_container_has_maps() -> None:
    """D1.4: 65,535; the copies' own staging takes none of them."""
    most = capabilities.current().limits.dma_maps_max
    gc.collect()
    held: list[torch.Tensor] = []

    def fill() -> None:
        for _ in range(most + 1):
            held.append(torch.empty(1, pin_memory=True))

    with pytest.raises(torch.OutOfMemoryError, match="MapDMAFailed: No space left on device"):
        fill()
    assert torch.ones(64).to("spyre").cpu().sum() == 64
    held.pop()
    held.append(torch.empty(1, pin_memory=True))
    assert most - 16 <= len(held) <= most


def test_a_non_blocking_copy_reads_pinned_memory_when_the_stream_comes_to_it() -> None:
    host, device = torch.zeros(64).pin_memory(), torch.empty(64, device="spyre")
    with Gate():
        device.copy_(host, non_blocking=True)
        host.fill_(5)
    assert device.cpu().unique().tolist() == [5]


def test_other_copies_have_read_their_source_when_they_return() -> None:
    for host, non_blocking in ((torch.zeros(64), True), (torch.zeros(64).pin_memory(), False)):
        device = torch.empty(64, device="spyre")
        with Gate():
            device.copy_(host, non_blocking=non_blocking)
            host.fill_(5)
        assert device.cpu().unique().tolist() == [0]


def test_a_non_blocking_copy_to_pinned_memory_comes_later() -> None:
    device, host = (
        torch.ones(64, dtype=torch.float16, device="spyre"),
        torch.zeros(64, dtype=torch.float16).pin_memory(),
    )
    with Gate():
        host.copy_(device, non_blocking=True)
        assert host.unique().tolist() == [0]
    torch.spyre.synchronize()
    assert host.unique().tolist() == [1]


def test_dtype_and_device_in_one_call_and_expanded_sources() -> None:
    host = torch.randn(3, 1).pin_memory()
    moved = host.expand(3, 64).to("spyre", torch.float16, non_blocking=True)
    assert moved.dtype == torch.float16
    assert torch.allclose(moved.cpu().float(), host.expand(3, 64), atol=2e-3, rtol=2e-3)


def test_memory_freed_in_flight_is_used_again_only_afterwards() -> None:
    host = torch.ones(1 << 16).pin_memory()
    device = torch.empty(1 << 16, device="spyre")
    address = device.data_ptr()
    before = torch.spyre.memory_stats()
    with Gate():
        device.copy_(host, non_blocking=True)
        del device
        during = torch.spyre.memory_stats()
        fresh = torch.empty(1 << 16, device="spyre")
        assert fresh.data_ptr() != address
        del fresh
    torch.spyre.synchronize()
    size = (1 << 16) * 4
    assert during["allocated_bytes.all.current"] == before["allocated_bytes.all.current"] - size
    assert during["active_bytes.all.current"] == before["active_bytes.all.current"]
    assert torch.spyre.memory_stats()["active_bytes.all.current"] == before["active_bytes.all.current"] - size
    assert torch.empty(1 << 16, device="spyre").data_ptr() == address


def test_data_loader_pins_for_the_device() -> None:
    data = TensorDataset(torch.arange(12.0).reshape(6, 2))
    for workers in (0, 2):
        batches = [batch for (batch,) in DataLoader(data, batch_size=2, pin_memory=True, num_workers=workers)]
        assert all(batch.is_pinned() for batch in batches)
        moved = torch.cat([batch.to("spyre", non_blocking=True) for batch in batches])
        assert torch.equal(moved.cpu(), data.tensors[0])
