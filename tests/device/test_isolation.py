"""Processes: forks are refused clearly, spawned ones work, the real backend wins, import stays cheap."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.device.reference import run_python

FORK = """
import os, torch

def attempt(name, use):
    try:
        return f"{name}: {use().cpu().tolist()}"
    except RuntimeError as error:
        return f"{name}: {str(error).splitlines()[0]}"

def in_child(uses):
    read, write = os.pipe()
    if os.fork() == 0:
        os.write(write, "\\n".join(attempt(*item) for item in uses.items()).encode())
        os._exit(0)
    os.wait()
    print(os.read(read, 10000).decode())

make = lambda: torch.ones(2, device="spyre")
in_child({"before": make})
print(torch.spyre.is_initialized())
t = make()
in_child({"make": make, "read": lambda: t, "clone": lambda: t.clone(), "fallback": lambda: t.cumsum(0)})
print(t.tolist())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork is the default only on Linux")
def test_forks_before_the_first_use_work_and_later_ones_are_refused() -> None:
    result = run_python(FORK)
    lines = result.stdout.splitlines()
    assert lines[:2] == ["before: [1.0, 1.0]", "False"], result.stderr
    assert [line.split(":")[0] for line in lines[2:6]] == ["make", "read", "clone", "fallback"]
    assert all("Cannot re-initialize Spyre in a forked subprocess" in line for line in lines[2:6])
    assert lines[6] == "[1.0, 1.0]"


def test_import_torch_is_enough_and_stays_cheap() -> None:
    script = (
        "import sys, torch\n"
        "heavy = [m for m in ('torch._dynamo', 'torch._inductor', 'transformers', 'spyre_backend.compiler',\n"
        "                     'spyre_backend.emulator') if m in sys.modules]\n"
        "print(heavy, torch.spyre.is_initialized(), torch.ones(2, 3, dtype=torch.float16, device='spyre').shape)\n"
        "print(torch.spyre.is_initialized())\n"
    )
    result = run_python(script)
    assert result.stdout.splitlines() == ["[] False torch.Size([2, 3])", "True"], result.stderr
    assert result.stderr == ""


def test_importing_the_backend_first_works_and_so_does_autoload_switched_off() -> None:
    script = "import spyre_backend, torch; print(torch.ones(2, device='spyre').tolist())"
    assert run_python(script).stdout.strip() == "[1.0, 1.0]"
    assert run_python(script, TORCH_DEVICE_BACKEND_AUTOLOAD="0").stdout.strip() == "[1.0, 1.0]"


def test_a_build_does_not_load_the_native_part_that_it_replaces(tmp_path: Path) -> None:
    checkout = Path(__file__).parents[2]
    (tmp_path / "setup.py").write_text((checkout / "setup.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "spyre_backend").mkdir()
    (tmp_path / "spyre_backend/__init__.py").write_text("raise ImportError('an old native part')", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "setup.py", "--name"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "an old native part" not in result.stderr


def test_the_real_backend_wins(tmp_path) -> None:
    (tmp_path / "torch_spyre.py").write_text("")
    script = "import torch; print(torch._C._get_privateuse1_backend_name(), hasattr(torch, 'spyre'))"
    assert run_python(script, PYTHONPATH=str(tmp_path)).stdout.strip() == "privateuseone False"


def test_callbacks_run_at_the_first_use() -> None:
    script = (
        "import torch\n"
        "from spyre_backend.device.registration import on_first_use\n"
        "on_first_use(lambda: print('first')); print('imported')\n"
        "torch.ones(1, device='spyre'); torch.ones(1, device='spyre')\n"
        "on_first_use(lambda: print('late'))\n"
    )
    assert run_python(script).stdout.split() == ["imported", "first", "late"]


def test_meta_and_fake_tensors_of_the_device() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    allocated = torch.spyre.memory_stats()["allocation.all.allocated"]
    with FakeTensorMode():
        fake = torch.ones(2, 3, dtype=torch.float16, device="spyre")
        assert fake.device.type == "spyre"
        assert (fake @ fake.t()).shape == (2, 2)
    assert torch.spyre.memory_stats()["allocation.all.allocated"] == allocated
