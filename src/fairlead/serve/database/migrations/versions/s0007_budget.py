"""Makes the table of budgets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0007"
down_revision = "s0006"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "budget",
        sa.Column("tenancy_uid", sa.String(64), primary_key=True),
        sa.Column("tenancy", sa.String(63), nullable=False),
        sa.Column("amount", sa.String(32), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("grace_s", sa.Float, nullable=False),
        sa.Column("notify_percent", sa.String(64), nullable=False),
        sa.Column("account", sa.String(63), nullable=False),
        sa.Column("set_at", sa.Float, nullable=False),
        sa.Column("period", sa.String(7), nullable=False),
        sa.Column("spent", sa.String(64), nullable=False),
        sa.Column("told", sa.Integer, nullable=False),
        sa.Column("exceeded_at", sa.Float),
    )
