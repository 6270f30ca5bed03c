"""Events: record, query, wait, elapsed time."""

from __future__ import annotations

import time

import pytest
import torch


def test_elapsed_time_is_in_milliseconds_and_in_order() -> None:
    first, second = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
    first.record()
    time.sleep(0.02)
    second.record()
    second.synchronize()
    assert 19 <= first.elapsed_time(second) < 5000
    assert second.elapsed_time(first) < 0


def test_query_and_wait() -> None:
    event = torch.spyre.Event()
    assert event.query()
    stream = torch.spyre.Stream()
    event.record(stream)
    assert event.query()
    event.wait(torch.spyre.current_stream())
    stream.wait_event(event)


def test_streams_record_events() -> None:
    event = torch.spyre.Stream().record_event()
    assert event.device == torch.device("spyre:0")
    assert event.query()


def test_timing_must_have_been_asked_for() -> None:
    first, second = torch.spyre.Event(), torch.spyre.Event()
    first.record()
    second.record()
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        first.elapsed_time(second)


def test_elapsed_time_needs_both_records() -> None:
    first, second = torch.spyre.Event(enable_timing=True), torch.spyre.Event(enable_timing=True)
    first.record()
    with pytest.raises((RuntimeError, ValueError), match="record"):
        first.elapsed_time(second)


def test_generic_events() -> None:
    event = torch.Event(device="spyre")
    event.record()
    event.synchronize()
    assert event.query()
