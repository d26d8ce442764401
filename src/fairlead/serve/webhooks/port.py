"""Declares webhooks, what is sent to them, and where both are kept; without the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.serve.metering import budgetkeeper

STATES: Final = ("pending", "creating", "running", "crashed", "stopping", "succeeded", "failed", "stopped")
REMOVED, TEST, CONFIRM = "container.removed", "webhook.test", "notice.confirm"
WAITS, ENDS_SOON, SICK = "container.waits", "container.ends_soon", "container.gpu_unhealthy"
"""A container waits for long; it will be ended; a GPU that it holds is unhealthy."""
GPU_SICK, GPU_WELL = "gpu.unhealthy", "gpu.healthy"
FAIRLEAD, SLACK, MATRIX, EMAIL = FORMATS = ("fairlead", "slack", "matrix", "email")
"""In which form an event is sent."""
OWN, TENANCY, MACHINE = REACHES = ("own", "tenancy", "machine")
"""What a person gets notices of: containers that they started, all of a tenancy, everything."""
EVENTS: Final = (
    *(f"container.{state}" for state in STATES),
    REMOVED,
    WAITS,
    ENDS_SOON,
    SICK,
    "gpu.quarantined",
    GPU_SICK,
    GPU_WELL,
    budgetkeeper.THRESHOLD,
    budgetkeeper.STOPPING,
)
"""What can be subscribed to."""


class WebhookView(msgspec.Struct, frozen=True, kw_only=True):
    """Where events are sent to."""

    id: str
    tenancy: Annotated[str, msgspec.Meta(description="whose events; empty: everything on the machine")]
    url: Annotated[str, msgspec.Meta(description="address; of a chat's and of a query only the part without secrets")]
    events: Annotated[tuple[str, ...], msgspec.Meta(description="kinds of events; empty: all")]
    account: Annotated[str, msgspec.Meta(description="who made it; empty: root")]
    created_at: str
    pending: Annotated[int, msgspec.Meta(description="events that are still to be delivered")]
    format: Annotated[str, msgspec.Meta(description="fairlead, slack, matrix or email")] = FAIRLEAD
    person: Annotated[str, msgspec.Meta(description="account whose own notice it is; empty: nobody's")] = ""
    reach: Annotated[str, msgspec.Meta(description="what that person is told of: own, tenancy or machine")] = ""
    is_confirmed: Annotated[bool, msgspec.Meta(description="false: the code sent to the address is awaited")] = True


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
    format: str = FAIRLEAD
    token: str = ""
    """What a Matrix server is shown."""
    person: str = ""
    """Whose own notice it is; empty: the tenancy's, or the machine's."""
    reach: str = ""
    is_trusted: bool = True
    """Who makes it may have e-mail sent to an address that has not confirmed it."""


@frozen
class Event:
    """What happened."""

    type: str
    uid: str
    """Of the tenancy that it happened in; empty: in none."""
    data: Mapping[str, Any]
    account: str = ""
    """The account that started the container; empty: not known, or none."""


@frozen
class Due:
    """A delivery whose time has come."""

    id: str
    webhook: str
    url: str
    secret: str
    body: bytes
    attempts: int
    format: str = FAIRLEAD
    token: str = ""
    created_at: float = 0.0


@frozen
class Whose:
    """Which webhooks a caller may touch."""

    uids: Collection[str] | None = None
    """Of webhooks of tenancies: theirs; None: all, the machine's too."""
    person: str | None = None
    """Of notices of people: whose; empty: all accounts'. None: webhooks are meant, no notices."""


ALL: Final = Whose()
"""Every webhook."""


class Webhooks(Protocol):
    """Webhooks of tenancies and of the machine."""

    async def create(self, spec: Spec) -> NewWebhook:
        """Make one. Raises: Denied (`WebhookAddressRefused`); Invalid; Conflict (`WebhooksTooMany`)."""
        ...

    async def list(self, whose: Whose) -> tuple[WebhookView, ...]:
        """Return some, in the order of their making."""
        ...

    async def show(self, id_: str, whose: Whose) -> WebhookDetail:
        """Return one, and its last deliveries. Raises: NotFound (`WebhookUnknown`)."""
        ...

    async def delete(self, id_: str, whose: Whose) -> None:
        """Remove one with its deliveries. Raises: NotFound (`WebhookUnknown`)."""
        ...

    async def test(self, id_: str, whose: Whose) -> str:
        """Send an event of no meaning; return its id.

        Raises: NotFound (`WebhookUnknown`); Throttled (`WebhookTestsTooMany`): those of its tenancy come too often;
                Conflict (`NoticeUnconfirmed`).
        """
        ...

    async def confirm(self, id_: str, code: str, whose: Whose) -> WebhookView:
        """Confirm an e-mail address by the code that was sent there; five wrong ones remove it.

        Raises: NotFound (`WebhookUnknown`); Denied (`CodeWrong`).
        """
        ...


GIVEN_UP: Final = "given up"
LIMITED: Final = "limited"
"""Outcomes of what is not sent: it was tried or waited for too long; more than so much an hour."""


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

    async def done(self, one: Due, *, status: int | None, error: str, is_final: bool = False) -> bool:
        """Write how an attempt ended; an error has it tried again later, or given up, which is returned.

        Args: is_final: another try would end the same.
        """
        ...

    def take_dropped(self) -> tuple[tuple[str, str], ...]:
        """Return form and outcome of what was never tried, since the last call: for metrics.

        A transaction that fails may have counted one that it did not drop.
        """
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
