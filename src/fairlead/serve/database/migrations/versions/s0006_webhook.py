"""Makes the tables of webhooks and of what is sent to them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0006"
down_revision = "s0005"


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "webhook",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column("account", sa.String(63), nullable=False),
        sa.Column("tenancy_uid", sa.String(64), nullable=False, index=True),
        sa.Column("tenancy", sa.String(63), nullable=False),
        sa.Column("url", sa.String(1024), nullable=False),
        sa.Column("events", sa.String(512), nullable=False),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
    )
    op.create_table(
        "webhook_event",
        sa.Column("id", sa.String(32), primary_key=True),
        sa.Column(
            "webhook", sa.String(32), sa.ForeignKey("webhook.id", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("type", sa.String(64), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("next_at", sa.Float, index=True),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("delivered_at", sa.Float),
        sa.Column("status", sa.Integer),
        sa.Column("error", sa.String(200), nullable=False),
    )
    op.create_table(
        "webhook_seen",
        sa.Column("object", sa.String(128), primary_key=True),
        sa.Column("state", sa.String(128), nullable=False),
    )
