"""Describes events as a tenant sees them; without the web framework."""

from __future__ import annotations

from typing import Annotated

import msgspec

from fairlead.store.port import EVERYTHING, Selector
from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes import core


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to an object."""

    at: str | None
    object: Annotated[str, msgspec.Meta(description="kind/name in lower case, `pod/train-x7k2p`")]
    namespace: str
    type: Annotated[str, msgspec.Meta(description="Normal or Warning")]
    reason: str
    message: str
    source: str
    count: int


class EventList(msgspec.Struct, frozen=True, kw_only=True):
    """Events, oldest first."""

    items: tuple[EventView, ...]
    next: listing.Next = ""


def event_view(event: core.Event) -> EventView:
    """Describe an event."""
    about = event.involved_object
    return EventView(
        at=event.last_timestamp or event.metadata.creation_timestamp,
        object=f"{about.kind.lower()}/{about.name}",
        namespace=about.namespace,
        type=event.type,
        reason=event.reason,
        message=event.message,
        source=event.source.component,
        count=event.count,
    )


def selector_of(wanted: str) -> Selector:
    """Return what a store is asked for: events of that name alone; the kind is left to the reader."""
    name = wanted.rpartition("/")[2]
    return Selector(fields={"involvedObject.name": name}) if name else EVERYTHING


def matches_object(event: core.Event, wanted: str) -> bool:
    """Return whether an event is about `wanted`: `kind/name`, a name of any kind, or empty for all."""
    kind, slash, name = wanted.rpartition("/")
    about = event.involved_object
    if slash and kind.removesuffix("s").replace("container", "pod").lower() != about.kind.lower():
        return False
    return not wanted or name == about.name
