"""Events: record, query, wait, elapsed simulated time."""

from __future__ import annotations

import pytest
import torch

from tests.device.gates import Gate, work


def timed() -> torch.Event:
    return torch.spyre.Event(enable_timing=True)


def launch_cost() -> float:
    from spyre_backend.emulator import clock

    return clock.launch_time("direct") / 1000


def test_elapsed_time_is_the_simulated_time_between_two_marks() -> None:
    first, second = timed(), timed()
    torch.spyre.synchronize()
    first.record()
    work("work", lambda: None, microseconds=1500).launch()
    second.record()
    second.synchronize()
    assert first.elapsed_time(second) == pytest.approx(1.5 + launch_cost(), rel=1e-9)
    assert second.elapsed_time(first) == -first.elapsed_time(second)


def test_simulated_time_is_the_same_in_every_run() -> None:
    def run() -> float:
        first, second = timed(), timed()
        torch.spyre.synchronize()
        first.record()
        x = torch.ones(64, 64, dtype=torch.float16, device="spyre")
        (x @ x).relu().cpu()
        second.record()
        return first.elapsed_time(second)

    run()  # compiles
    assert run() == pytest.approx(run(), rel=1e-9)


def test_copies_overlap_with_computation_and_computation_does_not_with_itself() -> None:
    torch.spyre.synchronize()
    begin = torch.spyre.current_stream().record_event(timed())
    host = torch.zeros(1 << 20, dtype=torch.float16).pin_memory()
    device = torch.empty(1 << 20, dtype=torch.float16, device="spyre")
    ends = []
    for stream in (torch.spyre.Stream(), torch.spyre.Stream(), torch.spyre.Stream()):
        with stream:
            if len(ends) < 2:
                work("work", lambda: None, microseconds=5000).launch()
            else:
                device.copy_(host, non_blocking=True)
            ends.append(stream.record_event(timed()))
    torch.spyre.synchronize()
    one, two, copied = (begin.elapsed_time(end) for end in ends)
    assert one == pytest.approx(5 + launch_cost(), rel=1e-9)
    assert two == pytest.approx(2 * one, rel=1e-9)
    assert copied < one


def test_a_wait_moves_the_waiting_stream_in_simulated_time() -> None:
    torch.spyre.synchronize()
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    with first:
        work("work", lambda: None, microseconds=700).launch()
    mark = first.record_event(timed())
    second.wait_event(mark)
    after = second.record_event(timed())
    torch.spyre.synchronize()
    assert mark.elapsed_time(after) == 0


def test_query_and_wait() -> None:
    event = torch.spyre.Event()
    assert event.query()
    stream = torch.spyre.Stream()
    event.record(stream)
    assert event.query()
    event.wait(torch.spyre.current_stream())
    stream.wait_event(event)


def test_recording_again_moves_the_event_and_not_who_waits_already() -> None:
    first, second, waiting = (torch.spyre.Stream() for _ in range(3))
    event = torch.spyre.Event()
    event.record(first)
    waiting.wait_event(event)
    gate = Gate()
    with second:
        gate.launch()
        event.record(second)
    assert not event.query()
    waiting.synchronize()
    gate.open()
    event.synchronize()
    assert event.query()


def test_an_event_recorded_twice_means_its_second_record() -> None:
    begin, event = timed(), timed()
    torch.spyre.synchronize()
    begin.record()
    with Gate():
        for _ in range(2):
            work("work", lambda: None, microseconds=1000).launch()
            event.record()
        assert not event.query()
    event.synchronize()
    assert event.query()
    gate = launch_cost()
    assert begin.elapsed_time(event) == pytest.approx(2 * (1 + launch_cost()) + gate, rel=1e-9)


def ends(*queued: tuple[torch.Stream, torch.Event]) -> list[float]:
    """Queue a millisecond of work on each stream in turn; when each ends, in milliseconds without the launches."""
    begin = torch.spyre.current_stream().record_event(timed())
    for stream, event in queued:
        with stream:
            work("work", lambda: None, microseconds=1000).launch()
            event.record(stream)
    torch.spyre.synchronize()
    unit = 1 + launch_cost()
    return [begin.elapsed_time(event) / unit for _, event in queued]


def test_high_priority_goes_ahead_of_what_waits_in_simulated_time() -> None:
    torch.spyre.synchronize()
    low, high = torch.spyre.Stream(), torch.spyre.Stream(priority=-1)
    assert ends((low, timed()), (low, timed()), (high, timed())) == pytest.approx([1, 3, 2])


def test_equal_priorities_go_in_the_order_of_the_calls() -> None:
    torch.spyre.synchronize()
    first, second = torch.spyre.Stream(), torch.spyre.Stream()
    assert ends((first, timed()), (second, timed()), (first, timed())) == pytest.approx([1, 2, 3])


def test_high_priority_is_not_ahead_of_what_had_begun_when_it_came() -> None:
    torch.spyre.synchronize()
    low, high = torch.spyre.Stream(), torch.spyre.Stream(priority=-1)
    begin = low.record_event(timed())
    with low:
        work("work", lambda: None, microseconds=1000).launch()
        seen = low.record_event()
        work("work", lambda: None, microseconds=1000).launch()
        behind = low.record_event(timed())
    seen.synchronize()  # the host is at the moment at which the second one begins
    with high:
        work("work", lambda: None, microseconds=1000).launch()
        late = high.record_event(timed())
    torch.spyre.synchronize()
    unit = 1 + launch_cost()
    assert begin.elapsed_time(behind) == pytest.approx(2 * unit)
    assert begin.elapsed_time(late) == pytest.approx(3 * unit)


def test_a_wait_holds_high_priority_back_in_simulated_time() -> None:
    torch.spyre.synchronize()
    low, high = torch.spyre.Stream(), torch.spyre.Stream(priority=-1)
    begin = low.record_event(timed())
    with low:
        work("work", lambda: None, microseconds=1000).launch()
        work("work", lambda: None, microseconds=1000).launch()
        high.wait_stream(low)
        work("work", lambda: None, microseconds=1000).launch()
        low_end = low.record_event(timed())
    with high:
        work("work", lambda: None, microseconds=1000).launch()
        high_end = high.record_event(timed())
    torch.spyre.synchronize()
    unit = 1 + launch_cost()
    assert begin.elapsed_time(high_end) == pytest.approx(3 * unit)
    assert begin.elapsed_time(low_end) == pytest.approx(4 * unit)


def test_streams_record_events() -> None:
    event = torch.spyre.Stream().record_event()
    assert event.device == torch.device("spyre:0")
    assert event.query()
    assert isinstance(event, torch.spyre.Event)


def test_timing_must_have_been_asked_for() -> None:
    first, second = torch.spyre.Event(), torch.spyre.Event()
    first.record()
    second.record()
    with pytest.raises((RuntimeError, ValueError), match="timing"):
        first.elapsed_time(second)


def test_elapsed_time_needs_both_records_and_their_end() -> None:
    first, second = timed(), timed()
    first.record()
    with pytest.raises((RuntimeError, ValueError), match="record"):
        first.elapsed_time(second)
    with Gate():
        second.record()
        with pytest.raises(RuntimeError, match="completed"):
            first.elapsed_time(second)


def test_generic_events() -> None:
    event = torch.Event(device="spyre")
    event.record()
    event.synchronize()
    assert event.query()
