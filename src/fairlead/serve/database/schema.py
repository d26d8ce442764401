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
SESSION: Final = sa.Table(
    "session",
    METADATA,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("key", sa.String(16), sa.ForeignKey("api_key.id", ondelete="CASCADE")),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("used_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float, nullable=False),
)
"""Of browsers. `key`: the API key that it stands for; NULL: an identity provider vouched for the account."""
IDENTITY: Final = sa.Table(
    "identity",
    METADATA,
    sa.Column("issuer", sa.String(512), primary_key=True),
    sa.Column("subject", sa.String(255), primary_key=True),
    sa.Column("account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("linked_at", sa.Float, nullable=False),
)
"""People whom an identity provider vouches for, by what it never gives to another one."""
AUDIT: Final = sa.Table(
    "audit",
    METADATA,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
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
"""Rows are added and, the oldest, deleted; never changed. No foreign key: entries outlive their accounts."""
AUDIT_OUTCOME: Final = sa.Table(
    "audit_outcome",
    METADATA,
    sa.Column(
        "entry",
        sa.BigInteger().with_variant(sa.Integer, "sqlite"),
        sa.ForeignKey("audit.id", ondelete="CASCADE"),
        primary_key=True,
        autoincrement=False,
    ),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("status", sa.Integer, nullable=False),
    sa.Column("reason", sa.String(64), nullable=False),
    sa.Column("namespace", sa.String(256), nullable=False),
    sa.Column("tenancy", sa.String(63), nullable=False),
    sa.Column("tenancy_uid", sa.String(64), nullable=False, index=True),
    sa.Column("count", sa.Integer, nullable=False, server_default="1"),
)
