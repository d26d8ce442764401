"""Describes quotas and what is used of them; without the web framework."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from fairlead.wire.fairlead import listing


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """One quota and what is used of it."""

    name: str
    namespace: str
    hard: Mapping[str, str]
    used: Mapping[str, str]


class QuotaList(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas."""

    items: tuple[QuotaView, ...]
    next: listing.Next = ""
