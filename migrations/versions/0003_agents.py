"""The coding agents: cases, attempts, reviews.

Revision: 0003
Revises: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def _row_id() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _cases()
    _attempts()
    _reviews()


def downgrade() -> None:
    for table in ("agent_reviews", "agent_attempts", "agent_cases"):
        op.drop_table(table)


def _times() -> list[sa.Column[object]]:
    return [sa.Column(name, sa.DateTime(timezone=True), nullable=False) for name in ("created_at", "updated_at")]


def _cases() -> None:
    op.create_table(
        "agent_cases",
        sa.Column("id", _row_id(), autoincrement=True, nullable=False),
        *_times(),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("release", sa.String(), nullable=False),
        sa.Column("subject_key", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("drafter", sa.String(), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("rule", sa.String(), nullable=True),
        sa.Column("op", sa.String(), nullable=True),
        sa.Column("module_path", sa.String(), nullable=True),
        sa.Column("failure", sa.JSON(), nullable=False),
        sa.Column("branch", sa.String(), nullable=True),
        sa.CheckConstraint(
            "state IN ('working', 'waiting', 'landed', 'given-up', 'not-failing', 'failed')",
            name="ck_agent_cases_state",
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_agent_cases_subject_key", "agent_cases", ["subject_key"], unique=False)
    op.create_index("ix_agent_cases_rule", "agent_cases", ["rule"], unique=False)


def _attempts() -> None:
    op.create_table(
        "agent_attempts",
        sa.Column("id", _row_id(), autoincrement=True, nullable=False),
        sa.Column("case_id", _row_id(), sa.ForeignKey("agent_cases.id"), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        *_times(),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("adapter_name", sa.String(), nullable=True),
        sa.Column("adapter_hash", sa.String(), nullable=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("diff", sa.Text(), nullable=False),
        sa.Column("notes", sa.Text(), nullable=False),
        sa.Column("transcript", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("tokens_in", sa.Integer(), nullable=False),
        sa.Column("tokens_out", sa.Integer(), nullable=False),
        sa.Column("usd", sa.Float(), nullable=False),
        sa.Column("seconds", sa.Float(), nullable=False),
        sa.Column("sandboxed", sa.Boolean(), nullable=True),
        sa.CheckConstraint("outcome IN ('drafting', 'rejected', 'accepted')", name="ck_agent_attempts_outcome"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("case_id", "number", name="uq_agent_attempts_number"),
    )
    op.create_index("ix_agent_attempts_case_id", "agent_attempts", ["case_id"], unique=False)


def _reviews() -> None:
    op.create_table(
        "agent_reviews",
        sa.Column("id", _row_id(), autoincrement=True, nullable=False),
        sa.Column("case_id", _row_id(), sa.ForeignKey("agent_cases.id"), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("reviewer", sa.String(), nullable=False),
        sa.Column("decision", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.CheckConstraint("decision IN ('approve', 'reject', 'comment')", name="ck_agent_reviews_decision"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_agent_reviews_case_id", "agent_reviews", ["case_id"], unique=False)
