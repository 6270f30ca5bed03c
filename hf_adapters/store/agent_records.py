"""Cases, attempts and reviews as plain dataclasses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCase:
    """One failing structure that agents work on. `state`: see `agent_models.CASE_STATES`."""

    id: int
    created_at: datetime
    updated_at: datetime
    state: str
    reason: str
    release: str
    subject_key: str
    label: str
    drafter: str
    options: Mapping[str, Any]
    rule: str | None
    op: str | None
    module_path: str | None
    failure: Mapping[str, Any]
    branch: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredAttempt:
    """One draft of a case; `seconds` of wall-clock time, `usd` in US dollars."""

    id: int
    case_id: int
    number: int
    created_at: datetime
    updated_at: datetime
    outcome: str
    stage: str
    reason: str
    adapter_name: str | None
    adapter_hash: str | None
    source: str
    diff: str
    notes: str
    transcript: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Any]
    tokens_in: int
    tokens_out: int
    usd: float
    seconds: float
    sandboxed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredReview:
    """What a person decided or remarked; `decision`: approve, reject or comment."""

    id: int
    case_id: int
    attempt: int
    created_at: datetime
    reviewer: str
    decision: str
    text: str
