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
    sa.Column("page_digest", sa.String(64), nullable=False),
    sa.Column("address", sa.String(64), nullable=False),
)
"""Of browsers. `key`: the API key that it stands for; NULL: an identity provider vouched for the account."""
SSH_KEY: Final = sa.Table(
    "ssh_key",
    METADATA,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("fingerprint", sa.String(64), nullable=False, unique=True),
    sa.Column("public_key", sa.Text, nullable=False),
    sa.Column("note", sa.String(200), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("last_used_at", sa.Float),
)
"""Public keys for the SSH door. A key is one account's."""
IDENTITY: Final = sa.Table(
    "identity",
    METADATA,
    sa.Column("issuer", sa.String(512), primary_key=True),
    sa.Column("subject", sa.String(255), primary_key=True),
    sa.Column("account", sa.String(63), sa.ForeignKey("account.name", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("linked_at", sa.Float, nullable=False),
)
"""People whom an identity provider vouches for, by what it never gives to another one."""
WEBHOOK: Final = sa.Table(
    "webhook",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("account", sa.String(63), nullable=False),
    sa.Column("tenancy_uid", sa.String(64), nullable=False, index=True),
    sa.Column("tenancy", sa.String(63), nullable=False),
    sa.Column("url", sa.String(1024), nullable=False),
    sa.Column("events", sa.String(512), nullable=False),
    sa.Column("secret", sa.String(64), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("format", sa.String(16), nullable=False, server_default="fairlead"),
    sa.Column("person", sa.String(63), nullable=False, server_default=""),
    sa.Column("reach", sa.String(16), nullable=False, server_default=""),
    sa.Column("token", sa.String(1024), nullable=False, server_default=""),
    sa.Column("code", sa.String(32), nullable=False, server_default=""),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
)
"""No foreign key: a webhook is its tenancy's, and outlives the account that made it. `events` empty: all.

`person`: the account that is told, and whose notice it is; empty: the tenancy's, or the machine's. `reach`: of a
person's, what they are told of: own, tenancy or machine. `token`: what the receiver is shown beside the address.
`code`: what confirms an e-mail address; empty: it is confirmed. `tries`: wrong codes so far.
"""
WEBHOOK_EVENT: Final = sa.Table(
    "webhook_event",
    METADATA,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("webhook", sa.String(32), sa.ForeignKey("webhook.id", ondelete="CASCADE"), nullable=False, index=True),
    sa.Column("type", sa.String(64), nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("next_at", sa.Float, index=True),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("delivered_at", sa.Float),
    sa.Column("status", sa.Integer),
    sa.Column("error", sa.String(200), nullable=False),
)
"""The outbox and the log of deliveries in one. `next_at`: of the next attempt; NULL: there is none."""
WEBHOOK_SEEN: Final = sa.Table(
    "webhook_seen",
    METADATA,
    sa.Column("object", sa.String(128), primary_key=True),
    sa.Column("state", sa.String(128), nullable=False),
)
"""What was last written into the outbox of each object."""
BUDGET: Final = sa.Table(
    "budget",
    METADATA,
    sa.Column("tenancy_uid", sa.String(64), primary_key=True),
    sa.Column("tenancy", sa.String(63), nullable=False),
    sa.Column("amount", sa.String(32), nullable=False),
    sa.Column("action", sa.String(16), nullable=False),
    sa.Column("grace_s", sa.Float, nullable=False),
    sa.Column("notify_percent", sa.String(64), nullable=False),
    sa.Column("account", sa.String(63), nullable=False),
    sa.Column("set_at", sa.Float, nullable=False),
    sa.Column("period", sa.String(7), nullable=False),
    sa.Column("spent", sa.String(64), nullable=False),
    sa.Column("told", sa.Integer, nullable=False),
    sa.Column("exceeded_at", sa.Float),
)
"""Money is decimal text. From `period` on: how the last look found it."""
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
