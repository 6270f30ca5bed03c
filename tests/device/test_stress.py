"""Many threads, streams and events in random order against the same work in sequence; nothing is left behind."""

from __future__ import annotations

import gc
import random
import threading

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
    torch.spyre.synchronize()
    last = [torch.spyre.default_stream().record_event() for _ in tensors]
    host = torch.ones(64, dtype=torch.float16).pin_memory()
    for _ in range(60):
        source, target = dice.sample(range(4), 2)
        stream = dice.choice(streams)
        stream.wait_event(last[source])
        stream.wait_event(last[target])
        with torch.spyre.stream(stream):
            kind = dice.randrange(4)
            if kind == 0:
                tensors[target].copy_(tensors[source])
            elif kind == 1:
                tensors[target].copy_(host, non_blocking=True)
            elif kind == 2:
                double.launch(tensors[source], tensors[target])
            else:
                tensors[target].fill_(dice.randrange(8))
        last[source] = last[target] = stream.record_event()
    torch.spyre.synchronize()
    return [float(value) for tensor in tensors for value in tensor.cpu()]


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


@pytest.mark.slow
def test_ten_thousand_launches_leave_nothing_behind() -> None:
    double = LoadedProgram(doubling((64,)))
    x = torch.ones(64, dtype=torch.float16, device="spyre")
    double.launch(x, torch.empty_like(x))
    torch.spyre.synchronize()
    gc.collect()
    before = torch.spyre.memory_stats()
    for i in range(10_000):
        double.launch(x, torch.empty_like(x))
        if i % 500 == 0:
            torch.spyre.synchronize()
    torch.spyre.synchronize()
    after = torch.spyre.memory_stats()
    for name in ("allocation", "active", "active_bytes", "inactive_split", "reserved_bytes"):
        assert after[f"{name}.all.current"] == before[f"{name}.all.current"], name
    assert double.num_blobs == 1
