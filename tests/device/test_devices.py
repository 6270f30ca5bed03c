"""Several emulated devices in one process: SPYRE_DEVICES (D3.1)."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.device.reference import run_python

SCRIPT = """
import sys
import torch
from spyre_backend import _C
from tests.device.gates import Gate, work

def error(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "nothing"

assert torch.spyre.device_count() == torch.accelerator.device_count() == 4
# Selection.
assert torch.spyre.current_device() == 0
with torch.spyre.device(1):
    assert torch.spyre.current_device() == 1 and torch.ones(2, device="spyre").device.index == 1
    with torch.spyre.device("spyre:3"):
        assert torch.spyre.current_device() == 3
    assert torch.spyre.current_device() == 1
assert torch.spyre.current_device() == 0
x = torch.arange(64, dtype=torch.float16, device="spyre:2")
with torch.spyre.device_of(x):
    assert torch.spyre.current_device() == 2
# Memory is counted for each.
before = [torch.spyre.memory_allocated(i) for i in range(4)]
y = torch.empty(128, 64, dtype=torch.float16, device="spyre:1")
assert [torch.spyre.memory_allocated(i) - b for i, b in enumerate(before)] == [0, 128 * 128, 0, 0]
assert "device 1" in torch.spyre.memory_summary(1)
# Eager operators run where their tensors are, in whatever device is current.
assert (x + x).device.index == 2 and (x + x).cpu().tolist() == [2.0 * i for i in range(64)]
assert torch.equal((x.to("spyre:3") * 2).cpu(), (x * 2).cpu())
# Peer copies, in order with both streams.
z = torch.zeros(64, dtype=torch.float16, device="spyre:1")
gate = Gate()
with torch.spyre.device(2):
    gate.launch()
z.copy_(x)
x2 = z + z
assert not torch.spyre.current_stream(1).query()
gate.open()
assert x2.cpu().tolist() == [2.0 * i for i in range(64)]
assert x.to("spyre:0").device.index == 0 and torch.equal(x.to("spyre:0").cpu(), x.cpu())
assert torch.equal(x.to("spyre:1", torch.float32).cpu(), x.cpu().float())
# Streams belong to a device and bring it with them.
stream = torch.spyre.Stream(device=1)
with torch.spyre.stream(stream):
    assert torch.spyre.current_device() == 1 and torch.spyre.current_stream().stream_id == stream.stream_id
    assert torch.spyre.current_stream(0).stream_id == 0
assert torch.spyre.current_device() == 0
event = torch.spyre.Event(device=1)
event.record(stream)
torch.spyre.current_stream(3).wait_event(event)
torch.spyre.synchronize(3)
# Random numbers.
torch.manual_seed(3)
a, b = (torch.randn(8, device=f"spyre:{i}").cpu() for i in (0, 1))
assert torch.equal(a, b)
assert len(torch.spyre.get_rng_state_all()) == 4
# A compiled function on another device.
f = torch.compile(lambda t: (t * 2).relu(), dynamic=False)
assert torch.equal(f(torch.ones(2, 64, dtype=torch.float16, device="spyre:3")).cpu(), torch.full((2, 64), 2.0).half())
# Errors.
print(error(lambda: torch.ones(1, device="spyre:4")))
print(error(lambda: torch.spyre.set_device(7)))
print(error(lambda: x + torch.ones(64, dtype=torch.float16, device="spyre:1")))
print(error(lambda: event.record(torch.spyre.current_stream(0))))
print(error(lambda: x.record_stream(torch.spyre.current_stream(0))))
work("failing", lambda: 1 / 0).launch()
torch.spyre.synchronize(1)
print(error(lambda: torch.spyre.synchronize(0)))
print("usable", torch.ones(2, device="spyre:1").cpu().tolist())
torch.save(torch.ones(2, device="spyre:3"), sys.argv[1])
"""


@pytest.mark.slow
def test_four_devices(tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"
    result = run_python(
        f"import sys; sys.argv.append({str(path)!r})\n{SCRIPT}", SPYRE_DEVICES="4", PYTHONWARNINGS="ignore"
    )
    lines = result.stdout.splitlines()
    assert len(lines) == 7, result.stderr
    assert "invalid device spyre:4; this process has devices spyre:0 to spyre:3" in lines[0]
    assert lines[1].startswith("ValueError: invalid device index 7")
    assert "device" in lines[2]
    assert "spyre:1" in lines[2]
    assert "cannot be recorded on a stream of spyre:0" in lines[3]
    assert "record_stream got a stream of spyre:0 for a tensor on spyre:2" in lines[4]
    assert lines[5].startswith("ZeroDivisionError")
    assert lines[6] == "usable [1.0, 1.0]"
    with pytest.raises((RuntimeError, ValueError), match=r"spyre:3|device_count\(\) is 1"):
        torch.load(path)
    assert torch.load(path, map_location={"spyre:3": "spyre:0"}).device == torch.device("spyre:0")
    assert torch.load(path, map_location=lambda storage, location: storage).device == torch.device("cpu")


@pytest.mark.parametrize("value", ["0", "many", "100"])
def test_a_wrong_number_of_devices_is_named(value: str) -> None:
    result = run_python("import torch; torch.ones(1, device='spyre')", SPYRE_DEVICES=value)
    assert result.returncode != 0
    assert f"SPYRE_DEVICES must be a number of devices from 1 to 16, got '{value}'" in result.stderr
