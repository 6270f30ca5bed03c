"""The tables: models, structures, memberships, adapters, runs, verdicts.

A *model* is one line of a ranking (or one model that was checked by hand). A *structure* is what is
actually built, compiled and judged; every model with the same structural signature shares it. A
*membership* says which structure a profile belongs to, for each release: the same profile may fall into
another group when a release looks embeddings up on the device. A *verdict* is evidence; rows are only ever
added. Which verdict is the current one of a model is a question (see `current.py`), never a stored flag.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKey, Index, Text, UniqueConstraint
from sqlmodel import Field, SQLModel

from hf_adapters.store._types import Json, LongInteger, RowId, UtcDateTime, utc_now

VERDICTS: tuple[str, ...] = (
    "native",
    "adapted",
    "fallback",
    "mismatch",
    "uncovered",
    "unbuildable",
    "crashed",
    "timed-out",
)
ACCEPTED: tuple[str, ...] = ("native", "adapted")
LADDER: tuple[str, ...] = (
    "catalogued",
    "built",
    "traced",
    "lowered",
    "executed",
    "accurate",
    "real-weights",
    "reviewed",
)
RUN_STATES: tuple[str, ...] = ("running", "finished", "interrupted")


def _one_of(column: str, values: tuple[str, ...]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


class StructureRow(SQLModel, table=True):
    """What is built and judged once for all models that share it."""

    __tablename__ = "structures"

    signature: str = Field(primary_key=True)
    shape_id: str = Field(index=True)
    model_type: str = Field(index=True)
    architecture_class: str
    representative_profile_id: str
    representative_checkpoint: str
    expected_parameter_count: int = Field(sa_column=Column(BigInteger, nullable=False))
    # The whole profile that is built, so that a worker needs nothing but this row.
    profile: dict[str, Any] = Field(sa_column=Column(Json, nullable=False))
    created_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))


class MembershipRow(SQLModel, table=True):
    """Profile -> structure, for one release."""

    __tablename__ = "memberships"

    profile_id: str = Field(primary_key=True)
    release: str = Field(primary_key=True)
    signature: str = Field(sa_column=Column(ForeignKey("structures.signature"), nullable=False, index=True))


class ModelRow(SQLModel, table=True):
    """One line of a ranking, or one model checked by hand (source "local")."""

    __tablename__ = "models"
    __table_args__ = (
        UniqueConstraint("source", "key", name="uq_models_source_key"),
        Index("ix_models_source_rank", "source", "rank"),
    )

    id: int | None = Field(default=None, sa_column=Column(RowId, primary_key=True, autoincrement=True))
    source: str = Field(index=True)
    source_date: str | None = None
    # The model id, or "rank/<n>" where the source carries no ids.
    key: str
    model_id: str | None = Field(default=None, index=True)
    revision: str | None = None
    config_hash: str | None = None
    rank: int | None = None
    downloads: int = Field(default=0, sa_column=Column(BigInteger, nullable=False))
    model_type: str = ""
    family: str = Field(default="unknown", index=True)
    # The profile that stands for the model's verdict; with stand_in it is weaker evidence.
    profile_id: str | None = Field(default=None, index=True)
    stand_in: bool = False
    match: str = "none"
    buildable: str = ""
    pooling: str | None = None
    gated: bool = False
    moe: bool = False
    multimodal: bool = False
    no_profile_reason: str | None = Field(default=None, sa_column=Column(Text))
    updated_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))


class AdapterRow(SQLModel, table=True):
    """One version (source hash) of one adapter."""

    __tablename__ = "adapters"

    name: str = Field(primary_key=True)
    hash: str = Field(primary_key=True)
    summary: str = ""
    equivalence: str = ""
    rules: list[str] = Field(default_factory=list, sa_column=Column(Json, nullable=False))
    releases: list[str] | None = Field(default=None, sa_column=Column(Json, nullable=True))
    # Who wrote it: "human", "rewrite", or the name of a language model.
    drafter: str = "human"
    trust: str = "unreviewed"
    first_seen: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))


class RunRow(SQLModel, table=True):
    """One command that produced verdicts."""

    __tablename__ = "runs"
    __table_args__ = (CheckConstraint(_one_of("state", RUN_STATES), name="ck_runs_state"),)

    id: int | None = Field(default=None, sa_column=Column(RowId, primary_key=True, autoincrement=True))
    started_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))
    finished_at: datetime | None = Field(default=None, sa_column=Column(UtcDateTime, nullable=True))
    state: str = "running"
    command: str = ""
    release: str
    # Hash over everything a verdict depends on: release, adapters, versions, acceptance rules.
    fingerprint: str
    source: str
    source_date: str | None = None
    top: int | None = None
    options: dict[str, Any] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    versions: dict[str, str] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))


class VerdictRow(SQLModel, table=True):
    """One piece of evidence, about a structure or about a single model. Append-only (a trigger guards it)."""

    __tablename__ = "verdicts"
    __table_args__ = (
        CheckConstraint(_one_of("verdict", VERDICTS), name="ck_verdicts_verdict"),
        CheckConstraint(_one_of("ladder", LADDER), name="ck_verdicts_ladder"),
        CheckConstraint("(signature IS NULL) <> (model_row_id IS NULL)", name="ck_verdicts_one_subject"),
        Index("ix_verdicts_signature", "release", "signature", "id"),
        Index("ix_verdicts_model", "release", "model_row_id", "id"),
    )

    id: int | None = Field(default=None, sa_column=Column(RowId, primary_key=True, autoincrement=True))
    run_id: int = Field(sa_column=Column(RowId, ForeignKey("runs.id"), nullable=False, index=True))
    signature: str | None = Field(default=None, sa_column=Column(ForeignKey("structures.signature"), nullable=True))
    model_row_id: int | None = Field(default=None, sa_column=Column(RowId, ForeignKey("models.id"), nullable=True))
    created_at: datetime = Field(default_factory=utc_now, sa_column=Column(UtcDateTime, nullable=False))

    verdict: str
    reason: str = Field(default="", sa_column=Column(Text, nullable=False))
    ladder: str = "catalogued"
    rule: str | None = Field(default=None, index=True)
    op: str | None = None
    error_code: str | None = None
    module_path: str | None = None
    source_line: str | None = Field(default=None, sa_column=Column(Text, nullable=True))
    hint: str | None = Field(default=None, sa_column=Column(Text, nullable=True))

    noise_floor: float | None = None
    floor_multiple: float | None = None
    multiple: float | None = None
    cosine_min: float | None = None
    cosine_pooled: float | None = None
    spearman: float | None = None
    neighbours_kept: bool | None = None
    fallback_count: int = 0
    fallbacks: dict[str, Any] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    simulated_us: float | None = None
    seconds: float | None = None

    weights: str = "random"
    weights_revision: str | None = None
    config_hash: str | None = None
    seed: int | None = Field(default=None, sa_column=Column(LongInteger, nullable=True))
    depth: str = "all"
    cut: dict[str, Any] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    inputs: dict[str, Any] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    adapters: dict[str, str] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    versions: dict[str, str] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
    release: str
    release_fingerprint: str
    fingerprint: str = Field(index=True)
    trust: str = "emulated"
    # The validator's whole answer, for `show` and for questions nobody thought of yet.
    details: dict[str, Any] = Field(default_factory=dict, sa_column=Column(Json, nullable=False))
