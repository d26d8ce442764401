"""Describes quotas and what is used of them; without the web framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from fairlead.wire.fairlead import listing


class QuotaView(msgspec.Struct, frozen=True, kw_only=True):
    """One quota and what is used of it."""

    name: str
    namespace: str
    hard: Mapping[str, str]
    used: Mapping[str, str]
    scopes: Annotated[
        tuple[str, ...], msgspec.Meta(description="which containers it counts, as a ResourceQuota says; empty: all")
    ] = ()


class QuotaList(msgspec.Struct, frozen=True, kw_only=True):
    """Quotas."""

    items: tuple[QuotaView, ...]
    next: listing.Next = ""
