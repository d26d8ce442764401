"""Makes the table of browsers' sessions anew, with what binds each to its browser; people log in again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0008"
down_revision = "s0007"


def upgrade() -> None:
    """Make the table anew: a session without these columns could be used elsewhere."""
    op.drop_table("session")
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
        sa.Column("page_digest", sa.String(64), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
    )
