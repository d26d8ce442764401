"""Makes the table of accounts' public keys for the SSH door."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0009"
down_revision = "s0008"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "ssh_key",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column(
            "account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("fingerprint", sa.String(64), nullable=False, unique=True),
        sa.Column("public_key", sa.Text, nullable=False),
        sa.Column("note", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("last_used_at", sa.Float),
    )
