"""Describes a container that waits, and has the words that go with it; a client imports no more than this."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

NEVER: Final = "WillNeverFit"
DEVICES: Final = "WaitingForDevices"
RESOURCES: Final = "WaitingForResources"
PORT: Final = "WaitingForPort"
SCHEDULER: Final = "WaitingForScheduler"
OTHER: Final = "NoNodeFits"
GROUP: Final = "WaitingForGroup"
QUEUE: Final = "WaitingForQueue"
ROOM: Final = "MakingRoom"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """What one container has of what is lacking."""

    namespace: Annotated[str, msgspec.Meta(description="empty: another tenancy's, together")]
    name: Annotated[str, msgspec.Meta(description="empty: another user's, whose names are not yours to read")]
    count: int
    since: Annotated[str | None, msgspec.Meta(description="since when; null: not known")]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Why a container has no node yet. Numbers are of the node that has most free; bytes for memory, else counts."""

    reason: Annotated[
        str,
        msgspec.Meta(
            description="WillNeverFit, WaitingForDevices, WaitingForResources, WaitingForPort, WaitingForScheduler, "
            "WaitingForGroup, WaitingForQueue, MakingRoom or NoNodeFits"
        ),
    ]
    message: Annotated[str, msgspec.Meta(description="one line for a person")]
    resource: Annotated[str, msgspec.Meta(description="what is lacking; empty where it is not an amount")] = ""
    asked: float = 0
    free: float = 0
    total: Annotated[float, msgspec.Meta(description="what that node has, whether healthy or not")] = 0
    unhealthy: float = 0
    node: str = ""
    holders: Annotated[tuple[Held, ...], msgspec.Meta(description="who has it on that node, most first")] = ()
    place: Annotated[int, msgspec.Meta(description="in the queue for it, 1 is next; 0: not queued")] = 0
    queued: Annotated[int, msgspec.Meta(description="containers that wait for it")] = 0
    estimate: Annotated[
        str | None,
        msgspec.Meta(
            description="free by then at the latest, by the time limits of what runs; null: nothing says when"
        ),
    ] = None


def duration(seconds: float) -> str:
    """Return a length of time as a person says it: `40 s`, `17 min`, `5 h`, `3 days`."""
    whole = max(0, int(seconds))
    for least, size, word in ((172800, 86400, "days"), (7200, 3600, "h"), (120, 60, "min")):
        if whole >= least:
            return f"{whole // size} {word}"
    return f"{whole} s"


def ordinal(number: int) -> str:
    """Return `1st`, `2nd`, `3rd`, `4th`, `11th`."""
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
