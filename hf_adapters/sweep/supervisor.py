"""Runs tasks in worker processes with time and memory limits; a crash loses one attempt of one task, nothing else."""

from __future__ import annotations

import collections
import selectors
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass

from hf_adapters.errors import HfAdaptersError
from hf_adapters.sweep.limits import GIB, default_jobs, default_memory, threads_per_worker
from hf_adapters.sweep.messages import Json, Outcome, Task
from hf_adapters.sweep.process import WorkerProcess, describe_exit
from hf_adapters.sweep.surroundings import SurroundingsUnusable

_POLL_SECONDS = 0.1
_MEMORY_POLL_SECONDS = 0.5
_MAX_FAILED_STARTS = 3


class WorkersDoNotStart(HfAdaptersError, RuntimeError):
    """Worker processes die before their first task: something is wrong with the installation, not with the models."""

    code = "E_WORKERS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a sweep's workers.

    Attributes:
        jobs: number of worker processes.
        timeout: seconds of wall-clock time for one task.
        memory: resident bytes of a worker with its children, beyond which it is killed (0: an equal share of what the
            machine has). A task killed for it is tried again alone, with the memory of all workers.
        recycle_tasks: a worker is replaced after this many tasks.
        recycle_memory: a worker that stays above this many resident bytes after a task is replaced (0: half its limit).
        start_timeout: seconds within which a worker must report that it has started.
        attempts: how often a task whose process dies is tried; the second time alone, after all others.
    """

    jobs: int = 0
    timeout: float = 900.0
    memory: int = 0
    recycle_tasks: int = 40
    recycle_memory: int = 0
    start_timeout: float = 180.0
    attempts: int = 2

    def workers(self) -> int:
        """Number of workers to start: `jobs`, or what the machine has room for when that is 0."""
        return self.jobs or default_jobs()

    def worker_memory(self) -> int:
        """Memory limit of one worker in bytes: `memory`, or a share of the machine's when that is 0."""
        return self.memory or default_memory(self.workers())


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What happened: `kind` is "started", "skipped", "retrying" or "finished"; only the last has an outcome, and only
    a retry a `reason`."""

    kind: str
    task: Task
    outcome: Outcome | None = None
    reason: str = ""


class Supervisor:
    """Gives tasks to worker processes and yields what happens.

    Args:
        work: work function as "module:function"; imported in the workers only.
        limits: time, memory and number of workers.
        env: environment variables for the workers on top of this process's own.
        claim: asked before a task is started for the first time; it is skipped when the answer is no.
    """

    def __init__(
        self,
        work: str,
        *,
        limits: Limits | None = None,
        env: dict[str, str] | None = None,
        claim: Callable[[Task], bool] = lambda _: True,
    ) -> None:
        self.work = work
        self._claim = claim
        self.limits = limits or Limits()
        threads = str(threads_per_worker(self.limits.workers()))
        self.env = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, **(env or {})}
        self._num_workers = self.limits.workers()
        self._memory = self.limits.worker_memory()
        self._waiting: collections.deque[Task] = collections.deque()
        # Tasks whose process died: tried again at the end, alone, because want of memory is the usual cause.
        self._again: list[Task] = []
        self._attempts: collections.Counter[str] = collections.Counter()
        self._workers: list[WorkerProcess] = []
        self._selector = selectors.DefaultSelector()
        self._failed_starts = 0

    def run(self, tasks: Iterable[Task]) -> Generator[Event, None, None]:
        """Yield events until every task has finished. Closing the iterator kills the workers.

        Raises:
            WorkersDoNotStart: several workers in a row died before they were ready.
            SurroundingsUnusable: a worker met a full or read-only disk.
        """
        self._waiting.extend(tasks)
        try:
            yield from self._drain()
            if self._again:
                self._stop_workers()
                self._num_workers, self._memory = 1, self._memory * self._num_workers
                self._waiting.extend(self._again)
                yield from self._drain()
        finally:
            self._stop_workers()
            self._selector.close()

    def _drain(self) -> Iterator[Event]:
        while self._waiting or any(worker.task for worker in self._workers):
            yield from self._assign()
            yield from self._collect()
            yield from self._enforce()

    def _assign(self) -> Iterator[Event]:
        idle = [worker for worker in self._workers if worker.task is None]
        missing = min(self._num_workers - len(self._workers), len(self._waiting) - len(idle))
        for _ in range(missing):
            worker = WorkerProcess(self.work, self.env)
            self._selector.register(worker.results, selectors.EVENT_READ, worker)
            self._workers.append(worker)
        for worker in idle:
            while worker.ready and self._waiting:
                task = self._waiting.popleft()
                if not self._attempts[task.key] and not self._claim(task):
                    yield Event(kind="skipped", task=task)
                    continue
                if worker.give(task):
                    self._attempts[task.key] += 1
                    yield Event(kind="started", task=task)
                else:
                    self._waiting.appendleft(task)
                break

    def _collect(self) -> Iterator[Event]:
        for key, _ in self._selector.select(_POLL_SECONDS):
            worker: WorkerProcess = key.data
            for message in worker.receive():
                yield from self._handle(worker, message)
            if worker.ended:
                yield from self._bury(worker)

    def _handle(self, worker: WorkerProcess, message: Json) -> Iterator[Event]:
        if message["event"] == "ready":
            worker.ready = True
            self._failed_starts = 0
            return
        task = worker.task
        if task is None or message.get("key") != task.key:
            return
        if message["event"] == "unusable":
            raise SurroundingsUnusable(
                f"stopped at {task.label}: {message['reason']}: free some space, then run the same command again; "
                "every verdict so far is kept"
            )
        done = message["event"] == "done"
        outcome = Outcome(
            kind="done" if done else "failed",
            result=message.get("result", {}),
            reason=message.get("reason", ""),
            detail=message.get("detail", ""),
            attempts=self._attempts[task.key],
            seconds=worker.busy_seconds(),
            peak_rss=max(worker.peak_rss, worker.rss()),
        )
        worker.finish()
        bound = self.limits.recycle_memory or self._memory // 2
        if worker.num_done >= self.limits.recycle_tasks or worker.rss() > bound:
            self._retire(worker)
        yield Event(kind="finished", task=task, outcome=outcome)

    def _bury(self, worker: WorkerProcess) -> Iterator[Event]:
        """A worker's result pipe has ended: the process is dead or dying."""
        code = worker.kill()
        self._forget(worker)
        if not worker.ready:
            self._failed_starts += 1
            if self._failed_starts >= _MAX_FAILED_STARTS:
                raise WorkersDoNotStart(f"workers do not start: {describe_exit(code)}\n{worker.log_tail()}")
        if worker.task is not None:
            yield from self._lost(worker, "crashed", f"the worker process died: {describe_exit(code)}")

    def _enforce(self) -> Iterator[Event]:
        now = time.monotonic()
        for worker in list(self._workers):
            if not worker.ready and now - worker.since > self.limits.start_timeout:
                yield from self._bury(worker)
            elif worker.task is not None and worker.busy_seconds() > self.limits.timeout:
                worker.kill()
                self._forget(worker)
                yield from self._lost(worker, "timed-out", f"no result within {self.limits.timeout:g} s")
            elif now - worker.measured > _MEMORY_POLL_SECONDS and worker.measure(now) > self._memory:
                worker.kill()
                self._forget(worker)
                if worker.task is not None:
                    limit, used = self._memory / GIB, worker.peak_rss / GIB
                    reason = f"needs more than the memory limit of {limit:.3g} GiB ({used:.3g} GiB in use)"
                    yield from self._lost(worker, "memory", reason)

    def _lost(self, worker: WorkerProcess, kind: str, reason: str) -> Iterator[Event]:
        task = worker.task
        assert task is not None
        attempts = self._attempts[task.key]
        if kind != "timed-out" and attempts < self.limits.attempts:
            self._again.append(task)
            yield Event(kind="retrying", task=task, reason=reason)
            return
        yield Event(
            kind="finished",
            task=task,
            outcome=Outcome(
                kind=kind,
                reason=reason,
                detail=worker.log_tail(),
                attempts=attempts,
                seconds=worker.busy_seconds(),
                peak_rss=worker.peak_rss,
            ),
        )

    def _retire(self, worker: WorkerProcess) -> None:
        worker.dismiss()
        self._forget(worker)

    def _forget(self, worker: WorkerProcess) -> None:
        if worker in self._workers:
            self._workers.remove(worker)
            self._selector.unregister(worker.results)
            worker.close()

    def _stop_workers(self) -> None:
        for worker in list(self._workers):
            if worker.task is None and worker.ready:
                worker.dismiss()
            else:
                worker.kill()
            self._forget(worker)
