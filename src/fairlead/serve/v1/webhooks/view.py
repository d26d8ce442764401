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
    format: Annotated[str, msgspec.Meta(description="fairlead, signed; slack, matrix or email: words for people")] = (
        "fairlead"
    )
    token: Annotated[str, msgspec.Meta(description="access token of a Matrix account")] = ""


class NoticeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which events a person wants, and where."""

    url: Annotated[str, msgspec.Meta(description="https://HOST/PATH, or mailto:NAME@HOST")]
    format: Annotated[str, msgspec.Meta(description="fairlead, slack, matrix or email")] = "fairlead"
    token: Annotated[str, msgspec.Meta(description="access token of a Matrix account")] = ""
    tenancy: Annotated[str, msgspec.Meta(description="all containers of it; empty: those that you started")] = ""
    machine: Annotated[bool, msgspec.Meta(description="everything on the machine, for administrators")] = False
    events: Annotated[
        tuple[str, ...], msgspec.Meta(description="kinds, as container.failed or container.*; none: those for people")
    ] = ()


class ConfirmRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The code that was sent to an e-mail address."""

    code: str


class WebhookList(msgspec.Struct, frozen=True, kw_only=True):
    """Webhooks."""

    items: tuple[WebhookView, ...]
    next: listing.Next = ""


class TestView(msgspec.Struct, frozen=True, kw_only=True):
    """An event that was sent to try a webhook."""

    id: str
