"""Makes the tables of accounts, memberships and keys: the first schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0001"
down_revision = None


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "account",
        sa.Column("name", sa.String(63), primary_key=True),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("is_administrator", sa.Boolean, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_table(
        "membership",
        sa.Column("account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), primary_key=True),
        sa.Column("tenancy_uid", sa.String(64), primary_key=True),
        sa.Column("tenancy", sa.String(63), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
    )
    op.create_table(
        "api_key",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column(
            "account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("note", sa.String(200), nullable=False),
        sa.Column("scopes", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
        sa.Column("last_used_at", sa.Float),
    )
