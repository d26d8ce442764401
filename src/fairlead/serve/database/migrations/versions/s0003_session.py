"""Makes the table of browsers' sessions."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0003"
down_revision = "s0002"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "session",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column(
            "account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("key", sa.String(16), sa.ForeignKey("api_key.id", ondelete="CASCADE")),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("used_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float, nullable=False),
    )
