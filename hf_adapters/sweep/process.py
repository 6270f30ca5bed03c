"""One worker process as seen by the supervisor: start it, give it a task, read its pipe, measure it, kill it."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from hf_adapters.sweep.limits import tree_rss
from hf_adapters.sweep.messages import Json, Task, decode, encode
from hf_adapters.sweep.surroundings import INDUCTOR_VARIABLE, inductor_cache

_TAIL_BYTES = 4000
_EXIT_SECONDS = 5.0


class WorkerProcess:
    """A running worker.

    Args:
        work: work function as "module:function".
        env: environment variables on top of this process's own.
    """

    def __init__(self, work: str, env: dict[str, str]) -> None:
        read_end, write_end = os.pipe()
        # Temporary files of a worker that is killed would stay for ever, so each has a folder that goes with it; the
        # cache of compiled graphs, by default a neighbour of the temporary files, must stay shared.
        self._scratch = tempfile.mkdtemp(prefix="hf-adapters-worker-")
        own = {"TMPDIR": self._scratch, INDUCTOR_VARIABLE: str(inductor_cache())}
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by `close`)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hf_adapters.sweep.worker", str(write_end), work],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(write_end,),
            env={**os.environ, **env, **own},
            # Its own process group: Ctrl-C in the terminal reaches the supervisor only, a kill the children, too.
            start_new_session=True,
        )
        os.close(write_end)
        os.set_blocking(read_end, False)
        self.results = read_end
        self.task: Task | None = None
        self.ready = False
        self.ended = False
        self.num_done = 0
        self.peak_rss = 0
        self.since = time.monotonic()
        self.measured = self.since
        self._buffer = b""
        self._log_start = 0

    def give(self, task: Task) -> bool:
        """Send a task; False when the process is already gone."""
        assert self._process.stdin is not None
        self._log_start = self._log_size()
        self.since, self.peak_rss = time.monotonic(), 0
        try:
            self._process.stdin.write(encode({"key": task.key, "payload": task.payload}))
            self._process.stdin.flush()
        except OSError:
            return False
        self.task = task
        return True

    def receive(self) -> Iterator[Json]:
        """Messages that have arrived; sets `ended` when the other end of the pipe is closed."""
        while True:
            try:
                chunk = os.read(self.results, 1 << 20)
            except BlockingIOError:
                break
            if not chunk:
                self.ended = True
                break
            self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            yield decode(line)

    def finish(self) -> None:
        """Note that the current task has been answered."""
        self.task = None
        self.num_done += 1
        self.since = time.monotonic()

    def busy_seconds(self) -> float:
        """Seconds since the current task was given (or since the last change of state)."""
        return time.monotonic() - self.since

    def rss(self) -> int:
        """Resident bytes of the process with its children, now."""
        return tree_rss(self._process.pid)

    def measure(self, now: float) -> int:
        """Resident bytes now; remembers the peak."""
        self.measured = now
        size = self.rss()
        self.peak_rss = max(self.peak_rss, size)
        return size

    def dismiss(self) -> None:
        """Ask an idle worker to exit; kill it when it does not."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(encode({"event": "exit"}))
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_SECONDS)
        self.kill()

    def kill(self) -> int:
        """Kill the process and its children; returns its exit code (negative: the signal)."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.2 if self.ended else 0)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        return code

    def log_tail(self) -> str:
        """Last lines that the worker wrote to its standard output and error during the current task."""
        if self._log.closed:
            return self._tail
        start = max(self._log_start, self._log_size() - _TAIL_BYTES)
        return os.pread(self._log.fileno(), _TAIL_BYTES, start).decode(errors="replace").strip()

    def close(self) -> None:
        """Release the pipe, the log and the temporary files; the log's tail stays readable."""
        self._tail = self.log_tail()
        self._log.close()
        shutil.rmtree(self._scratch, ignore_errors=True)
        os.close(self.results)

    def _log_size(self) -> int:
        return os.fstat(self._log.fileno()).st_size


def describe_exit(code: int) -> str:
    """An exit code in words, such as "killed by SIGKILL" or "exit code 3"."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
