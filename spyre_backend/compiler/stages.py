"""The stages of the compiler, in pipeline order, and a recorder that lets people read what each one did.

``SPYRE_LOGS=stick-layouts,program`` (or ``all``) prints stages as they happen; :func:`recording` collects them, which
is what ``hf-adapters explain`` shows.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

STAGES = (
    "decompositions",
    "post-grad",
    "lowering",
    "stick-layouts",
    "restickify",
    "work-division",
    "scratchpad",
    "bundling",
    "program",
)


@dataclass(frozen=True, slots=True)
class StageText:
    """What one stage did to one graph: ``graph`` counts the compiled graphs from 0."""

    stage: str
    graph: str
    text: str


_sink: ContextVar[list[StageText] | None] = ContextVar("spyre_stage_sink", default=None)


def wanted(stage: str) -> bool:
    """Whether anybody reads the text of ``stage`` (building it can cost more than the stage)."""
    return _sink.get() is not None or _printed(stage)


def _printed(stage: str) -> bool:
    names = os.environ.get("SPYRE_LOGS", "").split(",")
    return stage in names or "all" in names


def record(stage: str, graph: str, text: Callable[[], str]) -> None:
    """Hand the text of a stage to the recorder and to stderr, if wanted."""
    if not wanted(stage):
        return
    entry = StageText(stage, graph, text())
    sink = _sink.get()
    if sink is not None:
        sink.append(entry)
    if _printed(stage):
        print(f"--- spyre {stage} [{graph}]\n{entry.text}", file=sys.stderr)


@contextmanager
def recording() -> Iterator[list[StageText]]:
    """Collect the text of every stage compiled inside the block, in order."""
    collected: list[StageText] = []
    token = _sink.set(collected)
    try:
        yield collected
    finally:
        _sink.reset(token)
