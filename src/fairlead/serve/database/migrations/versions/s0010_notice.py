"""Adds to webhooks in which form they are sent, and whose own they are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0010"
down_revision = "s0009"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("webhook", sa.Column("format", sa.String(16), nullable=False, server_default="fairlead"))
    op.add_column("webhook", sa.Column("person", sa.String(63), nullable=False, server_default=""))
    op.add_column("webhook", sa.Column("reach", sa.String(16), nullable=False, server_default=""))
    op.add_column("webhook", sa.Column("token", sa.String(1024), nullable=False, server_default=""))
    op.add_column("webhook", sa.Column("code", sa.String(32), nullable=False, server_default=""))
    op.add_column("webhook", sa.Column("tries", sa.Integer, nullable=False, server_default="0"))
