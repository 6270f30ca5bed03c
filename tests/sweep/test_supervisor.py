"""The supervisor loses nothing but the structure that kills its worker."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from hf_adapters.sweep.messages import Outcome, Task
from hf_adapters.sweep.supervisor import Limits, Supervisor, WorkersDoNotStart
from hf_adapters.sweep.surroundings import SurroundingsUnusable

ACT = "tests.sweep.fakes:act"


def run(tasks: list[dict[str, Any]], **limits: Any) -> dict[str, Outcome]:
    """Outcomes by key; the key of a task is its position."""
    settings = Limits(**{"jobs": 1, "timeout": 30.0, **limits})
    work = [Task(key=str(index), label=str(index), payload=payload) for index, payload in enumerate(tasks)]
    events = list(Supervisor(ACT, limits=settings).run(work))
    finished = [event for event in events if event.kind == "finished"]
    assert sorted(event.task.key for event in finished) == sorted(task.key for task in work), (
        "one outcome for each task"
    )
    return {event.task.key: event.outcome for event in finished if event.outcome is not None}


def test_one_worker_serves_many_tasks() -> None:
    outcomes = run([{"do": "echo"}] * 5)
    assert {outcome.kind for outcome in outcomes.values()} == {"done"}
    assert len({outcome.result["pid"] for outcome in outcomes.values()}) == 1
    assert outcomes["0"].result["odd"] == [1.0, None], "NaN must not reach the store as a number"


def test_recycling_replaces_the_worker() -> None:
    outcomes = run([{"do": "echo"}] * 4, recycle_tasks=2)
    assert len({outcome.result["pid"] for outcome in outcomes.values()}) == 2


def test_recycling_by_memory_replaces_the_worker() -> None:
    outcomes = run([{"do": "echo"}] * 2, recycle_memory=1)
    assert len({outcome.result["pid"] for outcome in outcomes.values()}) == 2


def test_a_killed_worker_loses_one_structure_after_one_retry() -> None:
    outcomes = run([{"do": "echo"}, {"do": "die"}, {"do": "echo"}], jobs=2)
    assert [outcomes[key].kind for key in "012"] == ["done", "crashed", "done"]
    assert outcomes["1"].attempts == 2
    assert "SIGKILL" in outcomes["1"].reason


def test_exit_code_and_last_words_are_kept() -> None:
    outcomes = run([{"do": "exit"}])
    assert "exit code 7" in outcomes["0"].reason
    assert "about to leave" in outcomes["0"].detail


def test_a_crash_that_does_not_come_again_is_forgiven(tmp_path: Path) -> None:
    outcomes = run([{"do": "die-once", "marker": str(tmp_path / "died")}])
    assert outcomes["0"].kind == "done"
    assert outcomes["0"].attempts == 2


def test_an_exception_is_reported_with_its_traceback_and_the_worker_lives_on() -> None:
    outcomes = run([{"do": "echo"}, {"do": "raise", "message": "broken config"}, {"do": "echo"}])
    assert outcomes["1"].kind == "failed"
    assert outcomes["1"].reason == "ValueError: broken config"
    assert "Traceback" in outcomes["1"].detail
    assert outcomes["0"].result["pid"] == outcomes["2"].result["pid"]


def test_a_hanging_task_is_killed_at_the_timeout() -> None:
    begin = time.monotonic()
    outcomes = run([{"do": "hang"}, {"do": "echo"}], timeout=1.0)
    assert [outcomes[key].kind for key in "01"] == ["timed-out", "done"]
    assert outcomes["0"].reason == "no result within 1 s"
    assert time.monotonic() - begin < 20


def test_a_greedy_task_is_killed_at_the_memory_limit() -> None:
    outcomes = run([{"do": "eat", "bytes": 400 * 1024**2}, {"do": "echo"}], memory=200 * 1024**2)
    assert [outcomes[key].kind for key in "01"] == ["memory", "done"]
    assert "memory limit of 0.195 GiB" in outcomes["0"].reason


def test_a_task_that_needs_the_memory_of_all_workers_gets_it_alone_at_the_end() -> None:
    mib = 1024**2
    order = []
    work = [Task(key="big", label="big", payload={"do": "borrow", "bytes": 300 * mib})]
    work += [Task(key=str(index), label="small", payload={"do": "echo"}) for index in range(4)]
    supervisor = Supervisor(ACT, limits=Limits(jobs=2, timeout=30.0, memory=220 * mib))
    for event in supervisor.run(work):
        if event.outcome is not None:
            order.append((event.task.key, event.outcome.kind, event.outcome.attempts))
    assert order[-1] == ("big", "done", 2)
    assert {kind for _, kind, _ in order} == {"done"}


def test_what_a_model_prints_is_no_result() -> None:
    outcomes = run([{"do": "print"}])
    assert outcomes["0"].result["echo"] == {"do": "print"}


def test_two_workers_work_at_the_same_time() -> None:
    begin = time.monotonic()
    outcomes = run([{"do": "sleep", "seconds": 2}] * 2, jobs=2)
    assert len({outcome.result["pid"] for outcome in outcomes.values()}) == 2
    assert time.monotonic() - begin < 3.9


def test_closing_the_iterator_kills_the_workers() -> None:
    supervisor = Supervisor(ACT, limits=Limits(jobs=1))
    events = supervisor.run([Task(key="k", label="k", payload={"do": "hang"})])
    assert next(events).kind == "started"
    (worker,) = supervisor._workers
    pid = worker._process.pid
    events.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_workers_that_cannot_start_stop_the_sweep() -> None:
    supervisor = Supervisor("tests.sweep.no_such_module:act", limits=Limits(jobs=1))
    with pytest.raises(WorkersDoNotStart, match="no_such_module"):
        list(supervisor.run([Task(key="k", label="k")]))


def test_threads_are_shared_out_among_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_adapters.sweep.limits.cores", lambda: 8)
    assert Supervisor(ACT, limits=Limits(jobs=2)).env["OMP_NUM_THREADS"] == "4"


def test_a_killed_worker_leaves_no_temporary_files(tmp_path: Path) -> None:
    outcomes = run([{"do": "litter", "note": str(tmp_path / "note")}])
    assert outcomes["0"].kind == "crashed"
    scratch = Path((tmp_path / "note").read_text())
    assert scratch.name.startswith("hf-adapters-worker-")
    assert not scratch.exists()


def test_a_full_disk_stops_the_sweep_and_blames_no_model() -> None:
    supervisor = Supervisor(ACT, limits=Limits(jobs=1))
    events = supervisor.run([Task(key="k", label="some-model", payload={"do": "full-disk"})])
    with pytest.raises(SurroundingsUnusable, match=r"stopped at some-model: .*No space left on device"):
        list(events)
