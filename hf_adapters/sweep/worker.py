"""A worker process: judges one structure after another until it is told to stop.

Run by the supervisor as `python -m hf_adapters.sweep.worker`. Tasks come in through standard input, results go out
through a pipe of their own, so that what a model prints cannot be taken for a result.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from hf_adapters.sweep.messages import Json, decode, encode, finite
from hf_adapters.validation.faults import fault_behind

Work = Callable[[Json], Json]


def main(argv: list[str] | None = None) -> int:
    """Serve tasks until standard input ends.

    Args:
        argv: the result pipe's file descriptor and the work function as "module:function".
    """
    arguments = sys.argv[1:] if argv is None else argv
    results = os.fdopen(int(arguments[0]), "wb", buffering=0)
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks: queue.Queue[Json | None] = queue.Queue()
    threading.Thread(target=_read_tasks, args=(tasks,), daemon=True, name="tasks").start()
    work = load_work(arguments[1])
    results.write(encode({"event": "ready", "pid": os.getpid()}))
    while (task := tasks.get()) is not None:
        results.write(encode(_answer(work, task)))
    return 0


def load_work(path: str) -> Work:
    """Import the work function named by "module:function"."""
    module, _, name = path.partition(":")
    work: Work = getattr(importlib.import_module(module), name)
    return work


def _answer(work: Work, task: Json) -> Json:
    try:
        result: Any = work(task["payload"])
        return {"event": "done", "key": task["key"], "result": finite(result)}
    except Exception as error:
        if (fault := fault_behind(error)) is not None:
            return {"event": "unusable", "key": task["key"], "reason": str(fault)}
        return {
            "event": "failed",
            "key": task["key"],
            "reason": f"{type(error).__name__}: {error}",
            "detail": traceback.format_exc(),
        }


def _read_tasks(tasks: queue.Queue[Json | None]) -> None:
    for line in sys.stdin.buffer:
        task = decode(line)
        if task.get("event") == "exit":
            tasks.put(None)
            return
        tasks.put(task)
    # The supervisor is gone (standard input ended without "exit"): nobody would read the result, so stop what is
    # running, children included. The supervisor made this process the leader of its own group.
    if os.getpgid(0) == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of torch and Inductor must not keep a worker alive, or run destructors, once it has answered.
    os._exit(code)
