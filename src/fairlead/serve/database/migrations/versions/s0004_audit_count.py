"""Lets an outcome in the audit log stand for many refusals."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "s0004"
down_revision = "s0003"


def upgrade() -> None:
    """Add the column; outcomes that are there stand for one each."""
    op.add_column("audit_outcome", sa.Column("count", sa.Integer, nullable=False, server_default="1"))
