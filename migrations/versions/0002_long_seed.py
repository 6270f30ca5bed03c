"""Seeds are numbers of 62 bits: PostgreSQL's INTEGER is too narrow for them (SQLite's is not).

Revision: 0002
Revises: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Widen the column."""
    if op.get_bind().dialect.name == "postgresql":
        op.alter_column("verdicts", "seed", type_=sa.BigInteger())


def downgrade() -> None:
    """Narrow it again; seeds that do not fit are forgotten."""
    if op.get_bind().dialect.name == "postgresql":
        fits = "CASE WHEN seed BETWEEN -2147483648 AND 2147483647 THEN seed::integer END"
        op.alter_column("verdicts", "seed", type_=sa.Integer(), postgresql_using=fits)
