"""Baseline: models, structures, memberships, adapters, runs, verdicts.

Revision: 0001
Revises: nothing
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLES = ("verdicts", "memberships", "structures", "runs", "models", "adapters")
_PROTECTED = ("UPDATE", "DELETE")


def _row_id() -> sa.types.TypeEngine[int]:
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create every table and make verdict rows append-only."""
    _adapters()
    _models()
    _runs()
    _structures()
    _memberships()
    _verdicts()
    if op.get_bind().dialect.name == "sqlite":
        _guard_sqlite()
    elif op.get_bind().dialect.name == "postgresql":
        _guard_postgresql()


def downgrade() -> None:
    """Drop every table."""
    for table in _TABLES:
        op.drop_table(table)
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION verdicts_append_only()")


def _guard_sqlite() -> None:
    for action in _PROTECTED:
        op.execute(
            f"CREATE TRIGGER verdicts_no_{action.lower()} BEFORE {action} ON verdicts "
            "BEGIN SELECT RAISE(ABORT, 'verdicts are append-only'); END"
        )


def _guard_postgresql() -> None:
    op.execute(
        "CREATE FUNCTION verdicts_append_only() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'verdicts are append-only'; END $$"
    )
    op.execute(
        f"CREATE TRIGGER verdicts_guard BEFORE {' OR '.join(_PROTECTED)} ON verdicts "
        "FOR EACH ROW EXECUTE FUNCTION verdicts_append_only()"
    )


def _adapters() -> None:
    op.create_table(
        "adapters",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("summary", sa.String(), nullable=False),
        sa.Column("equivalence", sa.String(), nullable=False),
        sa.Column("rules", sa.JSON(), nullable=False),
        sa.Column("releases", sa.JSON(), nullable=True),
        sa.Column("drafter", sa.String(), nullable=False),
        sa.Column("trust", sa.String(), nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", "hash"),
    )


def _models() -> None:
    op.create_table(
        "models",
        sa.Column("id", _row_id(), autoincrement=True, nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("source_date", sa.String(), nullable=True),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=True),
        sa.Column("revision", sa.String(), nullable=True),
        sa.Column("config_hash", sa.String(), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("downloads", sa.BigInteger(), nullable=False),
        sa.Column("model_type", sa.String(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("profile_id", sa.String(), nullable=True),
        sa.Column("stand_in", sa.Boolean(), nullable=False),
        sa.Column("match", sa.String(), nullable=False),
        sa.Column("buildable", sa.String(), nullable=False),
        sa.Column("pooling", sa.String(), nullable=True),
        sa.Column("gated", sa.Boolean(), nullable=False),
        sa.Column("moe", sa.Boolean(), nullable=False),
        sa.Column("multimodal", sa.Boolean(), nullable=False),
        sa.Column("no_profile_reason", sa.Text(), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("source", "key", name="uq_models_source_key"),
    )
    op.create_index("ix_models_family", "models", ["family"], unique=False)
    op.create_index("ix_models_model_id", "models", ["model_id"], unique=False)
    op.create_index("ix_models_profile_id", "models", ["profile_id"], unique=False)
    op.create_index("ix_models_source", "models", ["source"], unique=False)
    op.create_index("ix_models_source_rank", "models", ["source", "rank"], unique=False)


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", _row_id(), autoincrement=True, nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("command", sa.String(), nullable=False),
        sa.Column("release", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("source_date", sa.String(), nullable=True),
        sa.Column("top", sa.Integer(), nullable=True),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.CheckConstraint("state IN ('running', 'finished', 'interrupted')", name="ck_runs_state"),
        sa.PrimaryKeyConstraint("id"),
    )


def _structures() -> None:
    op.create_table(
        "structures",
        sa.Column("signature", sa.String(), nullable=False),
        sa.Column("shape_id", sa.String(), nullable=False),
        sa.Column("model_type", sa.String(), nullable=False),
        sa.Column("architecture_class", sa.String(), nullable=False),
        sa.Column("representative_profile_id", sa.String(), nullable=False),
        sa.Column("representative_checkpoint", sa.String(), nullable=False),
        sa.Column("expected_parameter_count", sa.BigInteger(), nullable=False),
        sa.Column("profile", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("signature"),
    )
    op.create_index("ix_structures_model_type", "structures", ["model_type"], unique=False)
    op.create_index("ix_structures_shape_id", "structures", ["shape_id"], unique=False)


def _memberships() -> None:
    op.create_table(
        "memberships",
        sa.Column("profile_id", sa.String(), nullable=False),
        sa.Column("release", sa.String(), nullable=False),
        sa.Column("signature", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["signature"],
            ["structures.signature"],
        ),
        sa.PrimaryKeyConstraint("profile_id", "release"),
    )
    op.create_index("ix_memberships_signature", "memberships", ["signature"], unique=False)


def _verdicts() -> None:
    op.create_table("verdicts", *_evidence(), *_provenance(), *_verdict_constraints())
    op.create_index("ix_verdicts_fingerprint", "verdicts", ["fingerprint"], unique=False)
    op.create_index("ix_verdicts_model", "verdicts", ["release", "model_row_id", "id"], unique=False)
    op.create_index("ix_verdicts_rule", "verdicts", ["rule"], unique=False)
    op.create_index("ix_verdicts_run_id", "verdicts", ["run_id"], unique=False)
    op.create_index("ix_verdicts_signature", "verdicts", ["release", "signature", "id"], unique=False)


def _evidence() -> list[sa.Column[Any]]:
    return [
        sa.Column("id", _row_id(), autoincrement=True, nullable=False),
        sa.Column("run_id", _row_id(), nullable=False),
        sa.Column("signature", sa.String(), nullable=True),
        sa.Column("model_row_id", _row_id(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("verdict", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("ladder", sa.String(), nullable=False),
        sa.Column("rule", sa.String(), nullable=True),
        sa.Column("op", sa.String(), nullable=True),
        sa.Column("error_code", sa.String(), nullable=True),
        sa.Column("module_path", sa.String(), nullable=True),
        sa.Column("source_line", sa.Text(), nullable=True),
        sa.Column("hint", sa.Text(), nullable=True),
        sa.Column("noise_floor", sa.Float(), nullable=True),
        sa.Column("floor_multiple", sa.Float(), nullable=True),
        sa.Column("multiple", sa.Float(), nullable=True),
        sa.Column("cosine_min", sa.Float(), nullable=True),
        sa.Column("cosine_pooled", sa.Float(), nullable=True),
        sa.Column("spearman", sa.Float(), nullable=True),
        sa.Column("neighbours_kept", sa.Boolean(), nullable=True),
        sa.Column("fallback_count", sa.Integer(), nullable=False),
        sa.Column("fallbacks", sa.JSON(), nullable=False),
        sa.Column("simulated_us", sa.Float(), nullable=True),
        sa.Column("seconds", sa.Float(), nullable=True),
    ]


def _provenance() -> list[sa.Column[Any]]:
    return [
        sa.Column("weights", sa.String(), nullable=False),
        sa.Column("weights_revision", sa.String(), nullable=True),
        sa.Column("config_hash", sa.String(), nullable=True),
        sa.Column("seed", sa.Integer(), nullable=True),
        sa.Column("depth", sa.String(), nullable=False),
        sa.Column("cut", sa.JSON(), nullable=False),
        sa.Column("inputs", sa.JSON(), nullable=False),
        sa.Column("adapters", sa.JSON(), nullable=False),
        sa.Column("versions", sa.JSON(), nullable=False),
        sa.Column("release", sa.String(), nullable=False),
        sa.Column("release_fingerprint", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("trust", sa.String(), nullable=False),
        sa.Column("details", sa.JSON(), nullable=False),
    ]


def _verdict_constraints() -> list[sa.Constraint]:
    return [
        sa.CheckConstraint(
            "ladder IN ('catalogued', 'built', 'traced', 'lowered', "
            "'executed', 'accurate', 'real-weights', 'reviewed')",
            name="ck_verdicts_ladder",
        ),
        sa.CheckConstraint(
            "verdict IN ('native', 'adapted', 'fallback', 'mismatch', "
            "'uncovered', 'unbuildable', 'crashed', 'timed-out')",
            name="ck_verdicts_verdict",
        ),
        sa.CheckConstraint("(signature IS NULL) <> (model_row_id IS NULL)", name="ck_verdicts_one_subject"),
        sa.ForeignKeyConstraint(
            ["model_row_id"],
            ["models.id"],
        ),
        sa.ForeignKeyConstraint(
            ["run_id"],
            ["runs.id"],
        ),
        sa.ForeignKeyConstraint(
            ["signature"],
            ["structures.signature"],
        ),
        sa.PrimaryKeyConstraint("id"),
    ]
