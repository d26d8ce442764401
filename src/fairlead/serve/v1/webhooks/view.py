"""Describes what is asked of webhooks; without the web framework."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.serve.webhooks.port import WebhookView
from fairlead.wire.fairlead import listing


class WebhookRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A webhook to make."""

    url: Annotated[str, msgspec.Meta(description="https://HOST/PATH")]
    tenancy: Annotated[str, msgspec.Meta(description="whose events; empty: everything on the machine")] = ""
    events: Annotated[
        tuple[str, ...], msgspec.Meta(description="kinds, as container.failed or container.*; none: all")
    ] = ()


class WebhookList(msgspec.Struct, frozen=True, kw_only=True):
    """Webhooks."""

    items: tuple[WebhookView, ...]
    next: listing.Next = ""


class TestView(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was sent to try a webhook."""

    id: str
