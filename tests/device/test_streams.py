"""Streams: identity, priority, order, what runs asynchronously, what waits for what (D3.3)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch

from spyre_backend import _C
from tests.device.gates import Gate, work


def test_default_stream_is_zero_and_idle() -> None:
    assert torch.spyre.current_stream().stream_id == 0
    assert torch.spyre.default_stream() == torch.spyre.current_stream()
    torch.spyre.default_stream().synchronize()
    assert torch.spyre.default_stream().query()


@pytest.mark.parametrize(("priority", "reported", "ids"), [(0, 0, range(1, 33)), (-1, -1, range(33, 65))])
def test_ids_and_priorities(priority: int, reported: int, ids: range) -> None:
    streams = [torch.spyre.Stream(priority=priority) for _ in range(40)]
    assert {stream.stream_id for stream in streams} == set(ids)
    assert {stream.priority for stream in streams} == {reported}
    assert streams[0].device == torch.device("spyre:0")
    assert torch.spyre.Stream.priority_range() == (0, -1)


def test_host_compute_streams_follow_the_others() -> None:
    assert [stream.stream_id for stream in torch.spyre.host_compute_streams()] == [65, 66, 67, 68]
    assert {stream.priority for stream in torch.spyre.host_compute_streams()} == {0}


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


def test_a_launch_returns_before_its_work_has_ended() -> None:
    stream = torch.spyre.Stream()
    with torch.spyre.stream(stream), Gate():
        event = stream.record_event()
        assert not stream.query()
        assert not event.query()
    event.synchronize()
    stream.synchronize()
    assert stream.query()
    assert event.query()


def test_work_of_a_stream_runs_in_order_on_one_thread_that_is_not_the_callers() -> None:
    ran: list[tuple[int, int]] = []

    def note(i: int) -> Callable[[], None]:
        return lambda: ran.append((i, threading.get_ident()))

    with torch.spyre.stream(torch.spyre.Stream()), Gate():
        for i in range(20):
            work("note", note(i)).launch()
        assert not ran
    torch.spyre.synchronize()
    assert [i for i, _ in ran] == list(range(20))
    assert len({thread for _, thread in ran}) == 1
    assert ran[0][1] != threading.get_ident()


def test_a_stream_waits_for_another_and_for_events() -> None:
    first, second, third = (torch.spyre.Stream() for _ in range(3))
    x = torch.zeros(64, device="spyre")
    gate = Gate()
    with first:
        gate.launch()
        x.fill_(1)
        event = first.record_event()
    second.wait_event(event)
    with second:
        doubled = x + x
    third.wait_stream(second)
    with third:
        y = torch.zeros(64, device="spyre").copy_(doubled)
        assert not third.query()
    gate.open()
    torch.spyre.current_stream().wait_stream(third)
    assert y.cpu().unique().tolist() == [2]


def test_streams_that_do_not_wait_overtake_each_other() -> None:
    slow, fast = torch.spyre.host_compute_streams()[0], torch.spyre.Stream()
    host = torch.ones(64).pin_memory()
    with slow, Gate():
        behind = torch.zeros(64, device="spyre")
        behind.copy_(host, non_blocking=True)
        with fast:
            ahead = torch.zeros(64, device="spyre")
            ahead.copy_(host, non_blocking=True)
        fast.synchronize()
        assert not slow.query()
        with fast:
            assert ahead.cpu().sum().item() == 64
    slow.synchronize()
    with slow:
        assert behind.cpu().sum().item() == 64


def test_the_cores_take_high_priority_first() -> None:
    order: list[str] = []
    streams = {"low": torch.spyre.Stream(), "high": torch.spyre.Stream(priority=-1)}
    with torch.spyre.stream(torch.spyre.Stream()), Gate() as gate:
        assert gate.reached.wait(60)  # the gate has the cores
        for waiting, (name, stream) in enumerate(streams.items(), start=1):
            with stream:
                work(name, lambda name=name: order.append(name)).launch()
            while _C.cores_waiting(0) < waiting:
                time.sleep(0.001)
    torch.spyre.synchronize()
    assert order == ["high", "low"]


def test_host_work_waits_for_the_stream() -> None:
    """Fallbacks, lookups, item() and printing see what was queued before them."""
    table = torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    for read in (
        lambda: table.cumsum(0)[0, 0].item(),
        lambda: table.index_select(0, torch.tensor([0]).to("spyre")).cpu()[0, 0].item(),
        lambda: table[0, 0].item(),
        lambda: float(table.storage().cpu()[0]),
    ):
        table.zero_()
        with Gate() as gate:
            table.copy_(torch.ones(4, 64, dtype=torch.float16))
            threading.Timer(0.05, gate.open).start()
            assert read() == 1


def test_device_functions() -> None:
    assert torch.spyre.is_available()
    assert torch.spyre.device_count() == 1
    assert torch.spyre.current_device() == 0
    assert torch.accelerator.current_accelerator() == torch.device("spyre")
    with torch.spyre.device("spyre:0"), torch.device("spyre"), torch.spyre.device(None):
        assert torch.ones(1).is_spyre
    torch.spyre.set_device(0)
    torch.spyre.synchronize()
    torch.accelerator.synchronize()
    with pytest.raises(ValueError, match="one device"):
        torch.spyre.set_device(1)
    with pytest.raises(ValueError, match="expected a spyre device"):
        torch.spyre.synchronize("cpu")


def test_capability_names_the_dtypes_of_the_device() -> None:
    names = torch.accelerator.get_device_capability()["supported_dtypes"]
    assert names == {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.int32,
        torch.int64,
        torch.int8,
        torch.bool,
        torch.float8_e4m3fn,
    }
