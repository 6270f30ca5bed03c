"""The tables of the coding agents: cases, attempts, reviews.

A *case* is one failing structure that agents work on. An *attempt* is one draft of it, kept whole: what was said, what
was written, how far it came, what it cost. A *review* is what a person decided or remarked.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, Column, ForeignKey, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

from hf_adapters.store._types import Json, RowId, UtcDateTime, utc_now
from hf_adapters.store.models import _one_of

CASE_STATES: tuple[str, ...] = ("working", "waiting", "landed", "given-up", "not-failing", "failed")
OUTCOMES: tuple[str, ...] = ("drafting", "rejected", "accepted")
DECISIONS: tuple[str, ...] = ("approve", "reject", "comment")


class AgentCaseRow(SQLModel, table=True):
    """One failing structure that agents work on."""

    __tablename__ = "agent_cases"
    __table_args__ = (CheckConstraint(_one_of("state", CASE_STATES), name="ck_agent_cases_state"),)

    id: int | None = Field(default=None, sa_column=Column(RowId, primary_key=True, autoincrement=True))
    created_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))
    updated_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))
    state: str = "working"
    reason: str = Field(default="", sa_column=Column(Text, nullable=False))
    release: str
    # Structural signature, or another key of the portfolio; empty until one is picked.
    subject_key: str = Field(default="", index=True)
    label: str = ""
    drafter: str
    options: dict[str, Any] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    rule: str | None = Field(default=None, index=True)
    op: str | None = None
    module_path: str | None = None
    failure: dict[str, Any] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    branch: str | None = None


class AgentAttemptRow(SQLModel, table=True):
    """One draft of a case."""

    __tablename__ = "agent_attempts"
    __table_args__ = (
        CheckConstraint(_one_of("outcome", OUTCOMES), name="ck_agent_attempts_outcome"),
        UniqueConstraint("case_id", "number", name="uq_agent_attempts_number"),
    )

    id: int | None = Field(default=None, sa_column=Column(RowId, primary_key=True, autoincrement=True))
    case_id: int = Field(sa_column=Column(RowId, ForeignKey("agent_cases.id"), nullable=False, index=True))
    number: int
    created_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))
    updated_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))
    outcome: str = "drafting"
    # Where it was stopped, or the last gate that it passed.
    stage: str = "draft"
    reason: str = Field(default="", sa_column=Column(Text, nullable=False))
    adapter_name: str | None = None
    adapter_hash: str | None = None
    source: str = Field(default="", sa_column=Column(Text, nullable=False))
    # Against the attempt before it.
    diff: str = Field(default="", sa_column=Column(Text, nullable=False))
    notes: str = Field(default="", sa_column=Column(Text, nullable=False))
    transcript: list[Any] = Field(default_factory=list, sa_column=Column(Json, nullable=False))
    metrics: dict[str, Any] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float = 0.0
    seconds: float = 0.0
    sandboxed: bool | None = None


class AgentReviewRow(SQLModel, table=True):
    """What a person decided about a case, or remarked."""

    __tablename__ = "agent_reviews"
    __table_args__ = (CheckConstraint(_one_of("decision", DECISIONS), name="ck_agent_reviews_decision"),)

    id: int | None = Field(default=None, sa_column=Column(RowId, primary_key=True, autoincrement=True))
    case_id: int = Field(sa_column=Column(RowId, ForeignKey("agent_cases.id"), nullable=False, index=True))
    attempt: int
    created_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))
    reviewer: str
    decision: str
    text: str = Field(default="", sa_column=Column(Text, nullable=False))
