"""Work functions that stand for the real judge: they answer, raise, die, hang or eat memory on demand."""

from __future__ import annotations

import errno
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def act(payload: dict[str, Any]) -> dict[str, Any]:
    """Do what `payload["do"]` says."""
    what = payload["do"]
    if what == "raise":
        raise ValueError(payload.get("message", "no"))
    if what == "full-disk":
        _fill_disk()
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "die-once":
        return _die_once(Path(payload["marker"]))
    if what == "exit":
        print("about to leave", file=sys.stderr, flush=True)
        os._exit(7)
    if what == "hang":
        time.sleep(3600)
    if what == "eat":
        hoard = bytearray(payload["bytes"])
        hoard[::4096] = b"x" * len(hoard[::4096])
        time.sleep(3600)
    if what == "litter":
        (Path(tempfile.mkdtemp()) / "large.bin").write_bytes(b"x")
        Path(payload["note"]).write_text(tempfile.gettempdir())
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "borrow":
        hoard = bytearray(payload["bytes"])
        hoard[::4096] = b"x" * len(hoard[::4096])
        time.sleep(2)
    if what == "print":
        print('{"event": "done", "key": "forged", "result": {}}', flush=True)
    if what == "sleep":
        time.sleep(payload["seconds"])
    return {"pid": os.getpid(), "echo": payload, "odd": (1.0, float("nan"))}


def judge(payload: dict[str, Any]) -> dict[str, Any]:
    """A verdict made up from the profile's family; `HF_ADAPTERS_FAKE_LOG` names a file that lists what was judged."""
    family = payload["profile"]["model_type"] or payload["profile"]["config"]["model_type"]
    log = os.environ.get("HF_ADAPTERS_FAKE_LOG")
    if log:
        with Path(log).open("a") as lines:
            lines.write(payload["signature"] + "\n")
    time.sleep(float(os.environ.get("HF_ADAPTERS_FAKE_SECONDS", "0")))
    if family == os.environ.get("HF_ADAPTERS_FAKE_DIE"):
        os.kill(os.getpid(), signal.SIGKILL)
    if family == "mpnet":
        return {
            "verdict": "uncovered",
            "reason": "aten.pow.Tensor_Scalar: scalar exponents do not lower",
            "rule": "pow-scalar-exponent",
            "op": "aten.pow.Tensor_Scalar",
            "module_path": "encoder.layer.0",
        }
    if family == "bert":
        return {
            "verdict": "adapted",
            "reason": "",
            "adapters": {"gelu": "h1"},
            "noise_floor": 0.01,
            "multiple": 1.5,
            "weights": "random",
            "catalogue": [{"name": "gelu", "hash": "h1", "summary": "a gelu", "rules": ["r"]}],
        }
    return {"verdict": "native", "reason": "", "adapters": {}}


def _fill_disk() -> None:
    try:
        raise OSError(errno.ENOSPC, "No space left on device", "/somewhere")
    except OSError as error:
        raise RuntimeError("compilation failed") from error


def _die_once(marker: Path) -> dict[str, Any]:
    if not marker.exists():
        marker.touch()
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"survived": True}
