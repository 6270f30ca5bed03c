"""Run as a process of its own: works on one case in child processes that die by SIGKILL inside a step.

    python -m tests.agents.killed DATABASE REPOSITORY before|after

Each step of the graph is killed in turn, before or after it has done its work, and then the case is resumed by the next
child. Children are forked from a process that has imported everything and computed nothing. Prints one line a child.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from hf_adapters.agents import graph, review
from hf_adapters.agents.checkpoints import open_checkpointer
from hf_adapters.agents.run import advance, start
from hf_adapters.store import Store
from hf_adapters.store.agents import AgentStore
from tests.agents import doubles, drafts
from tests.agents.doubles import Scripted


class Patch:
    """As much of pytest's monkeypatch as `fake_emulator` uses."""

    def setattr(self, owner: Any, name: str, value: Any) -> None:
        setattr(owner, name, value)


def deadly(step: Any, when: str) -> Any:
    """The step, with the process killed before or after its work (an interrupt counts as work)."""

    def run(workshop: Any, state: Any) -> Any:
        try:
            if when == "after":
                step(workshop, state)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    return run


def work(database: str, repository: str, step: str, when: str) -> None:
    """Advance the newest case, or open one."""
    if step:
        graph.STEPS[step] = deadly(graph.STEPS[step], when)
    with Store(database) as store:
        script = [drafts.CUBE.replace("import math", "import os"), drafts.CUBE, drafts.SQUARE]
        workshop = doubles.workshop(store, Scripted(script), repository=Path(repository))
        cases = workshop.agents.cases()
        case_id = cases[0].id if cases else start(workshop, release=doubles.RELEASE)
        with open_checkpointer(database) as checkpointer:
            advance(workshop, checkpointer, case_id)


def child(database: str, repository: str, step: str, when: str) -> None:
    """Run `work` in a child and print how it ended and how the case stands."""
    pid = os.fork()
    if pid == 0:
        work(database, repository, step, when)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
    with Store(database) as store:
        print(step or "resumed", ended, AgentStore(store).cases()[0].state, flush=True)


def main() -> None:
    database, repository, when = sys.argv[1:]
    doubles.fake_emulator(Patch(), elsewhere=doubles.ELSEWHERE)
    for step in list(graph.STEPS):
        if step == "land":
            child(database, repository, "", when)
            with Store(database) as store:
                review.approve(AgentStore(store), 1, reviewer="ann")
        child(database, repository, step, when)
    child(database, repository, "", when)


if __name__ == "__main__":
    main()
