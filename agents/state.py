"""The state of a case as it travels through the graph: plain data, written to disk after every step."""

from __future__ import annotations

from typing import Any, TypedDict


class CaseState(TypedDict, total=False):
    """Everything a step needs to know; drafts, costs and reasons are rows of the database."""

    case_id: int
    wanted: str | None
    """Key of the structure to work on; None picks the one with the highest impact."""
    subject: dict[str, Any]
    """`Subject.to_json`."""
    failure: dict[str, Any]
    """`failure_to_json`."""
    attempt: int
    """Number of the current attempt, from 1."""
    proven: bool
    """Whether the last gate was passed."""
    parts: list[int]
    """Attempts whose drafts are proven for their own modules and stay applied: the model fails elsewhere as well."""
    solved: list[dict[str, Any]]
    """The failures that these are for, in their order, as `failure` is."""
    onward: bool
    """Whether the next failing place is to be diagnosed now."""
    ended: str
    """State of the case when it is over: `landed`, `given-up`, `not-failing`, `failed`; empty before."""
    decision: dict[str, Any]
    """What the reviewer decided: `decision`, `reviewer`, `text`."""
