"""Declares the tables of the service's database as the newest migration leaves them; a test compares the two."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

METADATA: Final = sa.MetaData()

ACCOUNT: Final = sa.Table(
    "account",
    METADATA,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("is_administrator", sa.Boolean, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)
MEMBERSHIP: Final = sa.Table(
    "membership",
    METADATA,
    sa.Column("account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), primary_key=True),
    sa.Column("tenancy_uid", sa.String(64), primary_key=True),
    sa.Column("tenancy", sa.String(63), nullable=False),
    sa.Column("role", sa.String(16), nullable=False),
)
API_KEY: Final = sa.Table(
    "api_key",
    METADATA,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("note", sa.String(200), nullable=False),
    sa.Column("scopes", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
    sa.Column("last_used_at", sa.Float),
)
