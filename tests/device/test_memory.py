"""Device memory: host views, protection, accounting, exhaustion."""

from __future__ import annotations

import gc
import signal
import threading

import pytest
import torch

from spyre_backend import _C
from spyre_backend.runtime.memory import device_access, host_view, mark_written, write_generation
from tests.device.reference import run_python


def test_host_view_shares_memory_size_stride_and_offset() -> None:
    device = torch.arange(24, dtype=torch.float32).reshape(4, 6).to("spyre")
    part = device[1:, 2:].t()
    with device_access():
        view = host_view(part)
        assert (view.shape, view.stride(), view.storage_offset()) == (
            part.shape,
            part.stride(),
            part.storage_offset(),
        )
        assert view.data_ptr() != part.data_ptr()
        view.fill_(7)
    assert device.cpu()[1:, 2:].unique().tolist() == [7]
    assert device.cpu()[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_host_view_of_16_bit_floats_is_codes() -> None:
    device = torch.ones(3, dtype=torch.bfloat16, device="spyre")
    with device_access():
        assert host_view(device).dtype == torch.int16
        assert host_view(device).tolist() == [31 << 9] * 3


def test_host_view_keeps_the_memory_alive() -> None:
    before = torch.spyre.memory_allocated()
    with device_access():
        view = host_view(torch.ones(1000, device="spyre"))
        assert torch.spyre.memory_allocated() > before
        assert view.sum().item() == 1000
        del view
    assert torch.spyre.memory_allocated() == before


def test_host_view_needs_open_memory_and_a_device_tensor() -> None:
    device = torch.ones(2, device="spyre")
    with pytest.raises(RuntimeError, match="device_access"):
        host_view(device)
    with device_access(), pytest.raises(RuntimeError, match="expected a tensor on spyre"):
        host_view(torch.ones(2))


def test_device_access_nests_and_closes_after_errors() -> None:
    with device_access():
        with pytest.raises(KeyError), device_access():
            raise KeyError
        assert _C.memory_is_open()
    assert not _C.memory_is_open()


READ = """
import ctypes, faulthandler, torch
from spyre_backend.runtime.memory import device_access, host_view, mark_written, write_generation
t = torch.ones(8, device="spyre")
with device_access():
    view = host_view(t)
    assert view[0].item() == 1.0
{body}
print("read", flush=True)
"""


@pytest.mark.parametrize(
    ("body", "strict"),
    [
        ("ctypes.string_at(t.data_ptr(), 4)", "0"),
        ("with device_access(): ctypes.string_at(t.data_ptr(), 4)", "0"),
        ("view[0].item()", "1"),
    ],
    ids=["address", "address-while-open", "view-kept-too-long"],
)
def test_reading_device_memory_outside_the_runtime_faults(body: str, strict: str) -> None:
    result = run_python(READ.format(body=body), SPYRE_BACKEND_STRICT_MEMORY=strict)
    assert result.returncode == -signal.SIGSEGV, result.stderr
    assert "read" not in result.stdout


@pytest.mark.parametrize(
    ("shape", "dtype", "sticks"),
    [
        ((1000, 1), torch.float16, 1000),
        ((64,), torch.float16, 1),
        ((65,), torch.bfloat16, 2),
        ((3, 33), torch.float32, 6),
        ((2, 2, 129), torch.int8, 8),
        ((4, 65), torch.bool, 8),
        ((33,), torch.int64, 2),
        ((), torch.float16, 1),
    ],
)
def test_tensors_count_whole_sticks(shape: tuple[int, ...], dtype: torch.dtype, sticks: int) -> None:
    before = torch.spyre.memory_allocated()
    tensor = torch.empty(shape, dtype=dtype, device="spyre")
    assert torch.spyre.memory_allocated() - before == sticks * 128
    del tensor
    assert torch.spyre.memory_allocated() == before


def test_peak_and_counts() -> None:
    torch.spyre.reset_peak_memory_stats()
    start = torch.spyre.memory_stats()
    a, b = (torch.empty(6400, dtype=torch.float16, device="spyre") for _ in range(2))
    del a
    after = torch.spyre.memory_stats()
    assert after["allocated_bytes.all.peak"] - start["allocated_bytes.all.current"] == 2 * 12800
    assert after["allocated_bytes.all.current"] - start["allocated_bytes.all.current"] == 12800
    assert after["allocation.all.allocated"] - start["allocation.all.allocated"] == 2
    assert after["allocation.all.freed"] - start["allocation.all.freed"] == 1
    free, total = torch.spyre.mem_get_info()
    assert total - free == after["allocated_bytes.all.current"]
    del b


def test_freed_blocks_are_used_again_and_coalesce() -> None:
    reserved = torch.spyre.memory_reserved()
    for size in (1, 100, 4096, 1 << 20, 17, 3 << 20):
        for _ in range(20):
            keep = [torch.empty(size + i, device="spyre") for i in range(5)]
            del keep[::2]
            del keep
    torch.spyre.empty_cache()
    assert torch.spyre.memory_reserved() - reserved <= 12 << 30


def test_regions_that_hold_nothing_are_given_back() -> None:
    gc.collect()
    torch.spyre.empty_cache()
    before = torch.spyre.memory_stats()
    for _ in range(3):
        held = [torch.empty(13 << 30, dtype=torch.int8, device="spyre") for _ in range(4)]
        assert torch.spyre.memory_reserved() >= 4 * 13 << 30
        del held
        # What is reserved in regions of 16 GiB would leave no room for it.
        large = torch.empty(100 << 30, dtype=torch.int8, device="spyre")
        large[-1:].fill_(5)
        assert large[-1:].cpu().tolist() == [5]
        del large
    torch.spyre.empty_cache()
    after = torch.spyre.memory_stats()
    for name in ("reserved_bytes", "segment", "allocated_bytes", "inactive_split_bytes"):
        assert after[f"{name}.all.current"] <= before[f"{name}.all.current"], name


def test_overlapping_allocations_never_happen() -> None:
    live: list[tuple[torch.Tensor, float]] = []
    for i in range(300):
        size = (i * 7919) % 5000 + 1
        live.append((torch.full((size,), float(i), device="spyre"), float(i)))
        if i % 3 == 2:
            live.pop((i * 31) % len(live))
    for tensor, value in live:
        assert tensor.cpu().unique().tolist() == [value]


def test_exhaustion_collects_garbage_then_says_how_much_was_asked() -> None:
    script = (
        "import torch\n"
        "class Cycle: pass\n"
        "cycle = Cycle(); cycle.me = cycle; cycle.held = torch.empty(500_000, device='spyre'); del cycle\n"
        "fits = torch.empty(400_000, device='spyre')\n"
        "try:\n"
        "    torch.empty(700_000, device='spyre')\n"
        "except torch.OutOfMemoryError as error:\n"
        "    print(str(error).splitlines()[0])\n"
    )
    result = run_python(script, SPYRE_BACKEND_MEMORY_BYTES="3000000")
    assert "All memory regions exhausted (RAS 0x340f) on spyre:0. RequestedBytes: 2800000" in result.stdout, (
        result.stderr
    )
    assert "free: 1400000, largest free block: 1400000, capacity: 3000000" in result.stdout


def test_threads_allocate_and_copy() -> None:
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(30):
                host = torch.full((100 + seed,), float(seed * 31 + i))
                assert torch.equal((host.to("spyre")).cpu(), host)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not _C.memory_is_open()


def test_device_memory_cannot_be_pinned() -> None:
    with pytest.raises(RuntimeError, match="pinned"):
        torch.empty(2, device="spyre", pin_memory=True)


def test_every_write_changes_the_generation_and_reads_do_not() -> None:
    device = torch.ones(4, 3, dtype=torch.float16, device="spyre")
    table = torch.arange(4).to("spyre")
    seen = [write_generation(device)]

    def changed() -> bool:
        seen.append(write_generation(device))
        return seen[-1] != seen[-2]

    reads = [
        lambda: device.cpu(),
        lambda: device[0].clone(),
        lambda: device.cumsum(0),
        lambda: device.index_select(0, table),
    ]
    for read in reads:
        read()
        assert not changed()
    writes = [
        lambda: device.zero_(),
        lambda: device[1:].copy_(torch.ones(3)),
        lambda: device.t()[0].fill_(2),
        lambda: device.normal_(),
        lambda: device[0].cumsum_(0),
        lambda: device.untyped_storage().copy_(torch.ones(12, dtype=torch.float16).untyped_storage()),
        lambda: mark_written(device),
    ]
    for write in writes:
        write()
        assert changed()
    with device_access():
        host_view(device, write=False)
        assert not changed()
        host_view(device)
        assert changed()
    assert write_generation(device[2:].t()) == write_generation(device)


def test_generations_are_never_used_again() -> None:
    seen = set()
    for _ in range(20):
        tensor = torch.empty(100, device="spyre")
        seen.add(write_generation(tensor))
        del tensor
    assert len(seen) == 20
    assert write_generation(torch.empty(0, device="spyre")) == 0
