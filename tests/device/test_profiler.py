"""Profiling: what PyTorch's profiler and the device's own trace see of launches and copies."""

from __future__ import annotations

import torch

from spyre_backend import _C
from tests.device.gates import work


def test_the_profiler_sees_operators_and_launches() -> None:
    x = torch.ones(64, device="spyre", dtype=torch.float16)
    with torch.profiler.profile(record_shapes=True) as profile:
        (x + x).cpu()
    keys = {event.key for event in profile.key_averages()}
    assert "aten::add" in keys
    assert any(key.startswith("spyre::") for key in keys)


def test_spans_have_names_streams_and_engines_in_simulated_time() -> None:
    host = torch.ones(64, dtype=torch.float16).pin_memory()
    device = torch.empty_like(host, device="spyre")
    stream = torch.spyre.Stream()
    torch.spyre.synchronize()
    _C.record_spans(True)
    try:
        with stream:
            device.copy_(host, non_blocking=True)
            work("first", lambda: None, microseconds=10).launch()
        work("second", lambda: None, microseconds=20).launch()
        torch.spyre.synchronize()
    finally:
        _C.record_spans(False)
    spans = {name: (device, stream, engine, start, end) for name, device, stream, engine, start, end in _C.take_spans()}
    assert set(spans) == {"copy to device", "first", "second"}
    assert spans["copy to device"][:3] == (0, stream.stream_id, "to device")
    assert spans["first"][1:3] == (stream.stream_id, "compute")
    assert spans["second"][1:3] == (0, "compute")
    assert spans["first"][3] >= spans["copy to device"][4], "a stream runs in order"
    assert spans["second"][4] <= spans["first"][3] or spans["first"][4] <= spans["second"][3], "cores are shared"


def test_nothing_is_kept_when_nobody_records() -> None:
    work("unseen", lambda: None).launch()
    torch.spyre.synchronize()
    assert _C.take_spans() == []


def test_programs_forgotten_before_their_time_is_asked_keep_their_name() -> None:
    torch.spyre.synchronize()
    _C.record_spans(True)
    try:
        work("short " * 10, lambda: None, microseconds=1).launch()
        torch.spyre.synchronize()
    finally:
        _C.record_spans(False)
    assert [span[0] for span in _C.take_spans()] == ["short " * 10]
