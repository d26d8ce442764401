"""Makes the table of people whom an identity provider vouches for."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0005"
down_revision = "s0004"


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "identity",
        sa.Column("issuer", sa.String(512), primary_key=True),
        sa.Column("subject", sa.String(255), primary_key=True),
        sa.Column(
            "account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True
        ),
        sa.Column("linked_at", sa.Float, nullable=False),
    )
