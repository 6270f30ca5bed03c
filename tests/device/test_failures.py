"""Errors of asynchronous work: where they surface, what they say, what still works afterwards."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spyre_backend.errors import SpyreRuntimeError
from spyre_backend.runtime.launch import LoadedProgram
from tests.device.gates import Gate, work
from tests.device.reference import run_python
from tests.runtime.test_launch import doubling


def fail() -> None:
    raise SpyreRuntimeError("the program failed")


def ways_to_wait(stream: torch.Stream, event: torch.Event) -> list[Callable[[], object]]:
    return [
        torch.spyre.synchronize,
        stream.synchronize,
        event.synchronize,
        lambda: torch.ones(4, device="spyre").cpu(),
        lambda: torch.ones(1, device="spyre").item(),
    ]


@pytest.mark.parametrize("way", range(5), ids=["device", "stream", "event", "copy", "item"])
def test_an_error_surfaces_at_the_next_synchronisation_with_the_launching_line(way: int) -> None:
    stream = torch.spyre.current_stream()
    work("failing", fail).launch()  # this line
    event = stream.record_event()
    with pytest.raises(
        SpyreRuntimeError, match=r"the program failed\n  launched at .*test_failures.py:\d+ in "
    ) as caught:
        ways_to_wait(stream, event)[way]()
    line = int(str(caught.value).rsplit("test_failures.py:", 1)[1].split()[0])
    assert "# this line" in Path(__file__).read_text(encoding="utf-8").splitlines()[line - 1]
    torch.spyre.synchronize()
    assert torch.ones(3, device="spyre").cpu().sum().item() == 3


def test_other_errors_keep_their_class_and_get_a_note() -> None:
    work("failing", lambda: {}["missing"]).launch()
    with pytest.raises(KeyError, match="missing") as caught:
        torch.spyre.synchronize()
    assert any("launched at" in note for note in caught.value.__notes__)


def test_work_behind_a_failure_is_dropped_until_somebody_knows() -> None:
    ran: list[str] = []
    work("failing", fail).launch()
    work("behind", lambda: ran.append("behind")).launch()
    other = torch.spyre.Stream()
    with other:
        work("elsewhere", lambda: ran.append("elsewhere")).launch()
    with pytest.raises(SpyreRuntimeError):
        torch.spyre.synchronize()
    work("after", lambda: ran.append("after")).launch()
    torch.spyre.synchronize()
    assert ran == ["elsewhere", "after"] or ran == ["after"]
    assert "behind" not in ran


def test_events_behind_a_failure_are_reached() -> None:
    waiting = torch.spyre.Stream()
    work("failing", fail).launch()
    waiting.wait_stream(torch.spyre.current_stream())
    with pytest.raises(SpyreRuntimeError):
        waiting.synchronize()
    assert torch.spyre.current_stream().record_event().query()


def test_blocking_launches_fail_where_they_are_made() -> None:
    torch.spyre.set_launch_blocking(True)
    try:
        with pytest.raises(SpyreRuntimeError, match="the program failed"):
            work("failing", fail).launch()
    finally:
        torch.spyre.set_launch_blocking(False)


def test_an_interrupt_ends_the_wait_and_not_the_work() -> None:
    gate = Gate()
    gate.launch()
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            torch.spyre.synchronize()
    finally:
        signal.signal(signal.SIGALRM, old)
    gate.open()
    torch.spyre.synchronize()
    assert torch.ones(2, device="spyre").cpu().tolist() == [1, 1]


def test_an_interrupt_during_a_blocking_launch_ends_the_wait_and_not_the_work() -> None:
    gate = Gate()
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    torch.spyre.set_launch_blocking(True)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            gate.launch()
    finally:
        torch.spyre.set_launch_blocking(False)
        signal.signal(signal.SIGALRM, old)
    assert not torch.spyre.current_stream().query()
    gate.open()
    torch.spyre.synchronize()
    assert torch.ones(2, device="spyre").cpu().tolist() == [1, 1]


def test_interrupts_at_any_point_of_launches_leave_the_device_usable() -> None:
    run = LoadedProgram(doubling((64,)))
    x = torch.full((64,), 3.0, dtype=torch.float16, device="spyre")
    armed = False

    def interrupt(signum: int, frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    def launch_until_interrupted() -> None:
        nonlocal armed
        out = torch.empty_like(x)
        try:
            armed = True
            while True:
                run.launch(x, out)
                out = torch.empty_like(x)
        except KeyboardInterrupt:
            pass

    torch.spyre.synchronize()
    before = torch.spyre.memory_stats()
    old = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    try:
        for _ in range(25):
            launch_until_interrupted()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    torch.spyre.synchronize()
    out = torch.empty_like(x)
    run.launch(x, out)
    assert out.cpu().unique().tolist() == [6.0]
    del out
    torch.spyre.synchronize()
    after = torch.spyre.memory_stats()
    assert after["active_bytes.all.current"] == before["active_bytes.all.current"]
    assert run.num_blobs == 1


EXIT = """
import threading, torch
from spyre_backend import _C
from tests.device.gates import work
x = torch.ones(8, device="spyre")
never = threading.Event()
print("ready", flush=True)
work("slow", lambda: never.wait(0.2)).launch()
for _ in range(5):
    work("dropped", lambda: print("ran")).launch()
work("failing", lambda: 1 / 0).launch()
"""


def test_a_process_ends_with_work_in_flight() -> None:
    result = run_python(EXIT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0] == "ready"


UNHEARD = """
import time, torch
from tests.device.gates import work
torch.ones(2, device="spyre")
work("failing", lambda: 1 / 0).launch()
while not torch.spyre.current_stream().query():
    time.sleep(0.01)
"""


def test_a_failure_that_nobody_waited_for_is_reported_at_the_end() -> None:
    result = run_python(UNHEARD)
    assert "nothing waited for it" in result.stderr
    assert "ZeroDivisionError" in result.stderr
