"""Processes that share nothing: spawned ones work, and one that is killed leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SPAWN = """
import torch
from torch.utils.data import DataLoader, Dataset

def double(x):
    return (x.to("spyre") * 2).cpu()

class OnDevice(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        return double(torch.full((2,), float(i)))

if __name__ == "__main__":
    import torch.multiprocessing as mp
    on_device = torch.ones(1, device="spyre")
    with mp.get_context("spawn").Pool(1) as pool:
        print(pool.apply(double, (torch.ones(2),)).tolist())
        try:
            pool.apply(double, (on_device,))
        except Exception as error:
            print(f"{type(error).__name__}: {error}")
    loader = DataLoader(OnDevice(), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    print([batch.tolist() for batch in loader])
    print(on_device.cpu().tolist())
"""


@pytest.mark.slow
def test_spawned_processes_have_devices_of_their_own(tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWN, encoding="utf-8")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=240, check=False)
    lines = result.stdout.splitlines()
    assert lines[0] == "[2.0, 2.0]", result.stderr
    assert lines[1] == "RuntimeError: _share_fd_: only available on CPU"
    assert lines[2:] == ["[[[0.0, 0.0], [2.0, 2.0]], [[4.0, 4.0], [6.0, 6.0]]]", "[1.0]"]


KILLED = """
import threading
import torch
from tests.device.gates import Gate

x = torch.ones(1 << 16, dtype=torch.float16, device="spyre")
host = torch.empty(1 << 16, dtype=torch.float16).pin_memory()
torch.compile(lambda t: t * 2, dynamic=False)(x).cpu()
for stream in (torch.spyre.Stream(), torch.spyre.Stream(priority=-1)):
    with torch.spyre.stream(stream):
        Gate().launch()
        host.copy_(x, non_blocking=True)
print("working", flush=True)
threading.Event().wait()
"""


def _processes() -> dict[int, int]:
    """Parent of each process that is alive."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # it has just ended
            if state not in "ZX":
                parents[int(entry.name)] = int(parent)
    return parents


def _descendants(root: int) -> set[int]:
    parents, found = _processes(), {root}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def _files_of(process: int) -> set[Path]:
    """Files below /dev/shm that a process maps or holds open and that have a name."""
    try:
        names = [line.split(maxsplit=5)[-1] for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
        names += [os.readlink(entry) for entry in Path(f"/proc/{process}/fd").iterdir() if entry.is_symlink()]
    except FileNotFoundError:
        return set()  # it, or the file, has just gone
    return {Path(name) for name in names if name.startswith("/dev/shm/") and not name.endswith("(deleted)")}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_killed_process_leaves_nothing_behind(tmp_path: Path) -> None:
    temporary, caches = tmp_path / "tmp", tmp_path / "caches"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED],
        env={
            **os.environ,
            "TMPDIR": str(temporary),
            "XDG_CACHE_HOME": str(caches),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "working\n"
        family = _descendants(process.pid)
        shared = set().union(*map(_files_of, family))
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    for _ in range(600):
        alive = family & set(_processes())
        if not alive:
            break
        time.sleep(0.1)
    assert not alive
    assert not [path for path in shared if path.exists()]
    assert not list(Path("/dev/shm").glob(f"*{process.pid}*"))
    assert list(temporary.iterdir()) == []
