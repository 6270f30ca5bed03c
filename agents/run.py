"""Start cases, and go on with those that were interrupted."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from hf_adapters.agents.graph import build
from hf_adapters.agents.state import CaseState
from hf_adapters.agents.workshop import Workshop
from hf_adapters.store.agent_records import StoredCase

_MOST_STEPS = 1000


def start(workshop: Workshop, *, release: str, wanted: str | None = None) -> int:
    """Open a case; `advance` works on it.

    Args:
        workshop: the means.
        release: torch-spyre release.
        wanted: key of the structure to work on; None lets the graph pick.

    Returns:
        The case's id.
    """
    options = {"wanted": wanted, "bounds": workshop.bounds.to_json(), "unsafe": workshop.sandbox.unsafe}
    return workshop.agents.open_case(release=release, drafter=workshop.drafter.name, options=options)


def advance(workshop: Workshop, checkpointer: BaseCheckpointSaver[str], case_id: int) -> StoredCase:
    """Work on a case until it is over or waits for a reviewer; also after a crash, from the step it was in.

    Args:
        workshop: the means.
        checkpointer: holds the case's state.
        case_id: the case.

    Returns:
        The case as it stands then.
    """
    case = workshop.agents.case(case_id)
    if case.state not in ("working", "waiting"):
        return case
    graph: Any = build(workshop).compile(checkpointer=checkpointer)
    config: RunnableConfig = {"configurable": {"thread_id": f"case-{case_id}"}, "recursion_limit": _MOST_STEPS}
    known = graph.get_state(config)
    given: Any
    if not known.values and not known.next:
        given = CaseState(case_id=case_id, wanted=case.options.get("wanted"))
    elif known.interrupts:
        decision = decided(workshop, case_id, known.values["attempt"])
        if decision is None:
            return case
        given = Command(resume=decision)
    else:
        given = None
    # Synchronously: a step begins only when the state before it is on disk.
    graph.invoke(given, config, durability="sync")
    return workshop.agents.case(case_id)


def decided(workshop: Workshop, case_id: int, attempt: int) -> dict[str, Any] | None:
    """The decision about an attempt, None when nobody made one."""
    rows = [r for r in workshop.agents.reviews(case_id) if r.attempt == attempt and r.decision != "comment"]
    if not rows:
        return None
    return {"decision": rows[-1].decision, "reviewer": rows[-1].reviewer, "text": rows[-1].text}
