"""Misuse of the runtime: one clear error each, and the device stays usable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from spyre_backend import _C
from spyre_backend.errors import SpyreRuntimeError
from spyre_backend.runtime.launch import LoadedProgram
from tests.device.reference import run_python
from tests.runtime.test_launch import doubling


@pytest.fixture(autouse=True)
def _device_stays_usable() -> Iterator[None]:
    yield
    torch.spyre.synchronize()
    x = torch.ones(4, dtype=torch.float16, device="spyre")
    assert (x + x).cpu().tolist() == [2.0] * 4


def halves(count: int = 4) -> torch.Tensor:
    return torch.ones(count, dtype=torch.float16, device="spyre")


def test_freed_tensors() -> None:
    freed = halves()
    freed.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=r"storage (was resized|of size 0)"):
        freed.cpu()
    with pytest.raises(RuntimeError, match=r"storage (was resized|of size 0)"):
        freed.copy_(halves())
    with pytest.raises(SpyreRuntimeError, match="has lost its memory"):
        LoadedProgram(doubling()).launch(freed, halves())


@pytest.mark.parametrize("foreign", [torch.ones(4, dtype=torch.float16), torch.ones(4, device="meta"), None, 3.0])
def test_foreign_arguments(foreign: object) -> None:
    with pytest.raises(SpyreRuntimeError, match=r"argument 0 .* is (on|a) "):
        LoadedProgram(doubling()).launch(foreign, halves())  # type: ignore[arg-type]


@pytest.mark.parametrize("priority", [1, -2, -7])
def test_priorities_that_are_none(priority: int) -> None:
    with pytest.raises(ValueError, match=rf"priority is 0 \(low\) or -1 \(high\); got {priority}"):
        torch.spyre.Stream(priority=priority)
    with pytest.raises(ValueError, match="priority is 0"):
        torch.Stream(device="spyre", priority=priority)


@pytest.mark.parametrize(
    "mixed",
    [
        lambda x, host: x + host,
        lambda x, host: host + x,
        lambda x, host: x @ host,
        lambda x, host: host.add_(x),
        lambda x, host: torch.cat([x, host]),
        lambda x, host: torch.add(x, x, out=host),
        lambda x, host: torch.lerp(x, host, 0.5),
        lambda x, host: x.masked_fill(host > 0, 1.0),
    ],
)
def test_operands_on_two_devices(mixed: Callable[[torch.Tensor, torch.Tensor], object]) -> None:
    x, host = torch.ones(64, 64, dtype=torch.float16, device="spyre"), torch.ones(64, 64, dtype=torch.float16)
    with pytest.raises(RuntimeError, match=r"same device.*(cpu|spyre:0) and (cpu|spyre:0)"):
        mixed(x, host)


def test_host_scalars_and_host_indices_are_operands() -> None:
    x = torch.arange(128, dtype=torch.int32).view(2, 64).to("spyre")
    assert (x.half() + torch.tensor(1.0)).device == x.device
    assert torch.equal(x[torch.tensor([1, 0])].cpu(), x.cpu().flip(0))


def test_streams_that_are_none() -> None:
    raw = torch.spyre.current_stream()
    unknown = torch.spyre.Stream(stream_id=99, device_index=0, device_type=raw.device_type)
    with pytest.raises(ValueError, match="there is no stream 99"):
        torch.spyre.set_stream(unknown)
    with pytest.raises(ValueError, match="expected a stream of a spyre device"):
        torch.spyre.set_stream(torch.Stream(device="cpu"))
    with pytest.raises(TypeError, match=r"expected a torch\.spyre\.Stream, got int"):
        torch.spyre.set_stream(3)  # type: ignore[arg-type]
    before = torch.spyre.current_stream()
    torch.spyre.set_stream(None)
    assert torch.spyre.current_stream() == before


def test_events_of_several_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="events cannot be shared between processes"):
        torch.spyre.Event(interprocess=True)


def test_allocations_of_nothing_and_of_too_much() -> None:
    empty = torch.empty(0, device="spyre")
    assert empty.numel() == empty.cpu().numel() == 0
    limit = torch.spyre.mem_get_info()[1]
    before = torch.spyre.memory_stats()["num_ooms"]
    with pytest.raises(
        torch.OutOfMemoryError, match=rf"RequestedBytes: {2 * limit}, free: \d+, largest free block: \d+"
    ):
        torch.empty(limit, dtype=torch.float16, device="spyre")
    assert torch.spyre.memory_stats()["num_ooms"] == before + 1


def test_most_of_the_card_costs_no_host_memory() -> None:
    large = torch.empty(100 << 30, dtype=torch.int8, device="spyre")
    assert torch.spyre.memory_allocated() >= 100 << 30
    large[-1:].fill_(7)
    assert large[-1:].cpu().tolist() == [7]
    regions = [region for region, _, _, _ in _C.chunks(large)]
    assert regions == list(range(regions[0], regions[0] + len(regions)))
    assert len(regions) == 9  # of 12 GiB (D3.2)


def test_copies_into_overlapping_memory() -> None:
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.zeros(1, device="spyre").expand(4).copy_(torch.ones(4))
    base = torch.zeros(128, device="spyre")
    with pytest.raises(RuntimeError, match="single memory location"):
        base[32:].copy_(base[:-32])


def test_a_file_saved_on_the_device_where_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"
    torch.save(halves(), path)
    with pytest.raises((RuntimeError, ValueError), match=r"spyre:3|device_count\(\) is 1"):
        torch.load(path, map_location="spyre:3")
    without = f"import torch\nprint(torch.load({str(path)!r}, map_location='cpu'))\ntorch.load({str(path)!r})"
    result = run_python(without, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "tensor([1., 1., 1., 1.]" in result.stdout
    assert result.returncode != 0
    assert "spyre" in result.stderr.splitlines()[-1]
