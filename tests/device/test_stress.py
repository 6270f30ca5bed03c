"""Many threads, streams and events in random order against the same work in sequence; nothing is left behind."""

from __future__ import annotations

import gc
import random
import sys
import threading
from pathlib import Path

import pytest
import torch

from spyre_backend.runtime.launch import LoadedProgram
from tests.runtime.test_launch import doubling


def _walk(seed: int, parallel: bool) -> list[float]:
    """Random copies, launches and waits between streams; every dependency is an event, so the result is determined."""
    dice = random.Random(seed)
    double = LoadedProgram(doubling((64,)))
    priorities = [dice.choice((0, -1)) for _ in range(4)]
    streams: list[torch.Stream] = [torch.spyre.Stream(priority=p) for p in priorities]
    if not parallel:
        streams = [torch.spyre.default_stream()] * 4
    tensors = [torch.full((64,), float(i + seed), dtype=torch.float16, device="spyre") for i in range(4)]
    host, sink = (torch.ones(64, dtype=torch.float16).pin_memory() for _ in range(2))
    everything = [*tensors, sink]
    torch.spyre.synchronize()
    last = [torch.spyre.default_stream().record_event() for _ in everything]
    for _ in range(60):
        source, target = dice.sample(range(4), 2)
        kind = dice.randrange(6)
        if kind == 4:
            target = 4
        stream = dice.choice(streams)
        stream.wait_event(last[source])
        stream.wait_event(last[target])
        with torch.spyre.stream(stream):
            if kind == 0:
                tensors[target].copy_(tensors[source])
            elif kind == 1:
                tensors[target].copy_(host, non_blocking=True)
            elif kind == 2:
                double.launch(tensors[source], tensors[target])
            elif kind == 3:
                tensors[target].fill_(dice.randrange(8))
            elif kind == 4:
                sink.copy_(tensors[source], non_blocking=True)
            else:
                tensors[target].copy_(tensors[source] - tensors[target])
        # An event that others wait for already may be recorded again.
        event = dice.choice((torch.spyre.Event(), last[source], last[target]))
        event.record(stream)
        last[source] = last[target] = event
    torch.spyre.synchronize()
    return [float(value) for tensor in everything for value in tensor.cpu()]


def test_random_streams_agree_with_a_sequence() -> None:
    wrong: list[int] = []

    def compare(seed: int) -> None:
        # Values may grow to infinity: compared as text, where nan equals itself.
        if str(_walk(seed, parallel=True)) != expected[seed]:
            wrong.append(seed)

    expected = {seed: str(_walk(seed, parallel=False)) for seed in range(6)}
    threads = [threading.Thread(target=compare, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _footprint() -> dict[str, int]:
    """What the process takes of the host: threads, open files, resident KiB."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines())
    return {
        "threads": int(fields["Threads"]),
        "files": len(list(Path("/proc/self/fd").iterdir())),
        "resident": int(fields["VmRSS"].split()[0]),
    }


def _launches(count: int, double: LoadedProgram, x: torch.Tensor, streams: list[torch.Stream]) -> None:
    """Launches on streams in turn, each into new memory, tied together by events that nobody keeps."""
    event = torch.spyre.Event()
    for i in range(count):
        stream = streams[i % len(streams)]
        stream.wait_event(event)
        with torch.spyre.stream(stream):
            double.launch(x, torch.empty_like(x))
            event.record(stream)
        if i % 500 == 0:
            torch.spyre.synchronize()
    torch.spyre.synchronize()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_ten_thousand_launches_leave_nothing_behind() -> None:
    gc.collect()  # tensors in cycles that earlier tests left would be freed in the middle
    double = LoadedProgram(doubling((64,)))
    x = torch.ones(64, dtype=torch.float16, device="spyre")
    streams: list[torch.Stream] = [torch.spyre.Stream(priority=p) for p in (0, -1, 0)]
    _launches(1000, double, x, streams)
    memory, host, blobs = torch.spyre.memory_stats(), _footprint(), double.num_blobs
    _launches(10_000, double, x, streams)
    after, host_after = torch.spyre.memory_stats(), _footprint()
    for name in ("allocation", "active", "active_bytes", "inactive_split", "reserved_bytes"):
        assert after[f"{name}.all.current"] == memory[f"{name}.all.current"], name
    assert (host_after["threads"], host_after["files"]) == (host["threads"], host["files"])
    assert host_after["resident"] - host["resident"] < 8 << 10, "a kilobyte for each launch"
    assert double.num_blobs == blobs <= len(streams)
