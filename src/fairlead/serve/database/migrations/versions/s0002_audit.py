"""Makes the tables of the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0002"
down_revision = "s0001"

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "audit",
        sa.Column("id", _ID, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Float, nullable=False, index=True),
        sa.Column("request", sa.String(32), nullable=False, unique=True),
        sa.Column("account", sa.String(256), nullable=False, index=True),
        sa.Column("key", sa.String(16), nullable=False),
        sa.Column("peer", sa.String(256), nullable=False),
        sa.Column("method", sa.String(256), nullable=False),
        sa.Column("action", sa.String(64), nullable=False),
        sa.Column("object", sa.String(256), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "audit_outcome",
        sa.Column("entry", _ID, sa.ForeignKey("audit.id", ondelete="CASCADE"), primary_key=True, autoincrement=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("namespace", sa.String(256), nullable=False),
        sa.Column("tenancy", sa.String(63), nullable=False),
        sa.Column("tenancy_uid", sa.String(64), nullable=False, index=True),
    )
