"""Streams: identity, priority, current stream of a thread (D3.3)."""

from __future__ import annotations

import threading

import pytest
import torch


def test_default_stream_is_zero_and_idle() -> None:
    assert torch.spyre.current_stream().stream_id == 0
    assert torch.spyre.default_stream() == torch.spyre.current_stream()
    assert torch.spyre.default_stream().query()
    torch.spyre.default_stream().synchronize()


@pytest.mark.parametrize(("priority", "reported", "ids"), [(0, 0, range(1, 33)), (-1, -1, range(33, 65))])
def test_ids_and_priorities(priority: int, reported: int, ids: range) -> None:
    streams = [torch.spyre.Stream(priority=priority) for _ in range(40)]
    assert {stream.stream_id for stream in streams} == set(ids)
    assert {stream.priority for stream in streams} == {reported}
    assert streams[0].device == torch.device("spyre:0")


def test_entering_a_stream_makes_it_current_and_leaves_it_again() -> None:
    outer, inner = torch.spyre.Stream(), torch.spyre.Stream(priority=-1)
    with torch.spyre.stream(outer):
        assert torch.spyre.current_stream().stream_id == outer.stream_id
        with torch.spyre.stream(inner), torch.spyre.stream(None):
            assert torch.spyre.current_stream().stream_id == inner.stream_id
        assert torch.spyre.current_stream().stream_id == outer.stream_id
    with inner:
        assert torch.accelerator.current_stream().stream_id == inner.stream_id
    assert torch.spyre.current_stream().stream_id == 0


def test_the_current_stream_belongs_to_the_thread() -> None:
    seen: list[int] = []
    with torch.spyre.stream(torch.spyre.Stream()):
        thread = threading.Thread(target=lambda: seen.append(torch.spyre.current_stream().stream_id))
        thread.start()
        thread.join()
    assert seen == [0]


def test_work_on_a_stream_is_visible_after_waiting() -> None:
    stream = torch.Stream(device="spyre")
    with stream:
        tensor = torch.ones(4, device="spyre")
    torch.spyre.current_stream().wait_stream(stream)
    tensor.record_stream(stream)
    assert tensor.cpu().tolist() == [1, 1, 1, 1]


def test_device_functions() -> None:
    assert torch.spyre.is_available()
    assert torch.spyre.device_count() == 1
    assert torch.spyre.current_device() == 0
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    with torch.spyre.device("spyre:0"), torch.device("spyre"):
        assert torch.ones(1).is_spyre
    torch.spyre.set_device(0)
    torch.spyre.synchronize()
    torch.accelerator.synchronize()
    with pytest.raises(ValueError, match="one device"):
        torch.spyre.set_device(1)
    with pytest.raises(ValueError, match="expected a spyre device"):
        torch.spyre.synchronize("cpu")
