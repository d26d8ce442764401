"""Declares webhooks, what is sent to them, and where both are kept; without the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.metering import budgetkeeper

STATES: Final = ("pending", "creating", "running", "crashed", "stopping", "succeeded", "failed", "stopped")
REMOVED, TEST = "container.removed", "webhook.test"
EVENTS: Final = (
    *(f"container.{state}" for state in STATES),
    REMOVED,
    "gpu.quarantined",
    budgetkeeper.THRESHOLD,
    budgetkeeper.STOPPING,
)
"""What can be subscribed to."""


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """Where events are sent to."""

    id: str
    tenancy: Annotated[str, msgspec.Meta(description="whose events; empty: everything on the machine")]
    url: str
    events: Annotated[tuple[str, ...], msgspec.Meta(description="kinds of events; empty: all")]
    account: Annotated[str, msgspec.Meta(description="who made it; empty: root")]
    created_at: str
    pending: Annotated[int, msgspec.Meta(description="events that are still to be delivered")]


class DeliveryView(msgspec.Struct, frozen=True, kw_only=True):
    """One event on its way to a webhook."""

    id: Annotated[str, msgspec.Meta(description="the same at each attempt: webhook-id")]
    type: str
    created_at: str
    state: Annotated[str, msgspec.Meta(description="pending, delivered or given up")]
    attempts: int
    status: Annotated[int | None, msgspec.Meta(description="of the last answer; null: there was none")]
    error: str
    next_at: Annotated[str | None, msgspec.Meta(description="next attempt; null: there is none")]


class WebhookDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook and what was sent to it last."""

    webhook: WebhookView
    deliveries: Annotated[tuple[DeliveryView, ...], msgspec.Meta(description="newest first")]


class NewWebhook(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook that was made: the only answer that holds its secret."""

    secret: str
    webhook: WebhookView


@frozen
class Spec:
    """A webhook to be made."""

    url: str
    events: tuple[str, ...]
    tenancy: str
    uid: str
    """Of the tenancy; both empty: everything on the machine."""
    account: str


@frozen
class Event:
    """What happened."""

    type: str
    uid: str
    """Of the tenancy that it happened in; empty: in none."""
    data: Mapping[str, Any]


@frozen
class Due:
    """A delivery whose time has come."""

    id: str
    webhook: str
    url: str
    secret: str
    body: bytes
    attempts: int


class Webhooks(Protocol):
    """Webhooks of tenancies and of the machine."""

    async def create(self, spec: Spec) -> NewWebhook:
        """Make one. Raises: Denied (`WebhookAddressRefused`); Invalid; Conflict (`WebhooksTooMany`)."""
        ...

    async def list(self, uids: Collection[str] | None) -> tuple[WebhookView, ...]:
        """Return those of tenancies, in the order of their making. Args: uids: None: all."""
        ...

    async def show(self, id_: str, uids: Collection[str] | None) -> WebhookDetail:
        """Return one, and its last deliveries. Raises: NotFound (`WebhookUnknown`)."""
        ...

    async def delete(self, id_: str, uids: Collection[str] | None) -> None:
        """Remove one with its deliveries. Raises: NotFound (`WebhookUnknown`)."""
        ...

    async def test(self, id_: str, uids: Collection[str] | None) -> str:
        """Send an event of no meaning; return its id.

        Raises: NotFound (`WebhookUnknown`); Throttled (`WebhookTestsTooMany`): those of its tenancy come too often.
        """
        ...


class Outbox(Protocol):
    """Events on their way."""

    async def seen(self) -> Mapping[str, str]:
        """Return the state that was last written of each object."""
        ...

    async def record(self, object_: str, state: str | None, events: Sequence[Event]) -> None:
        """Write in one step that an object has a state (None: it is gone), and what is to be sent because of that."""
        ...

    async def due(self, *, busy: Collection[str] = ()) -> tuple[Due, ...]:
        """Return the oldest delivery of each webhook whose time has come. Args: busy: webhooks that are left out."""
        ...

    async def done(self, one: Due, *, status: int | None, error: str) -> None:
        """Write how an attempt ended; an error has it tried again later, or given up."""
        ...

    async def prune(self) -> int:
        """Delete old deliveries that are over; return how many."""
        ...


def read_events(words: Sequence[str]) -> tuple[str, ...]:
    """Return kinds of events; a kind ends in `.*` for all of its sort. Raises: Invalid (`EventUnknown`)."""
    found: list[str] = []
    for word in words:
        fits = [one for one in EVENTS if one == word or (word.endswith(".*") and one.startswith(word[:-1]))]
        if not fits:
            message = f'"{errors.readable(word[:80])}" is not a kind of event'
            raise errors.Invalid(message, reason="EventUnknown", hint=f"any of {', '.join(EVENTS)}, or container.*")
        found += fits
    return tuple(dict.fromkeys(found))
