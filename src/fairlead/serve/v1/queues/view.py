"""Describes queues and how they stand; without the web framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes.scheduling import queue


class QueueRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue is to be; a field that is left out stays as it is, or as a new queue has it."""

    parent: Annotated[str | None, msgspec.Meta(description="queue above it, whose share it has a part of")] = None
    guarantee: Annotated[Mapping[str, str] | None, msgspec.Meta(description="kept for it, never lent")] = None
    deserved: Annotated[Mapping[str, str] | None, msgspec.Meta(description="lent while idle, and taken back")] = None
    limit: Annotated[Mapping[str, str] | None, msgspec.Meta(description="the most it may have")] = None
    weight: Annotated[int, msgspec.Meta(ge=0, le=65535, description="its part of what no queue deserves")] | None = None
    namespaces: Annotated[tuple[str, ...] | None, msgspec.Meta(description="whose containers are in it")] = None
    min_runtime_seconds: Annotated[int, msgspec.Meta(ge=0, description="run time before preemption")] | None = None
    policy: Annotated[str | None, msgspec.Meta(description="how its pods are placed; empty: as its parent's")] = None


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """One queue: its spec, and how it stands as the scheduler last said."""

    name: str
    spec: queue.QueueSpec
    status: queue.QueueStatus
    problem: Annotated[str, msgspec.Meta(description="why it is not carried out as written; empty: it is")] = ""


class QueueList(msgspec.Struct, frozen=True, kw_only=True):
    """Queues."""

    items: tuple[QueueView, ...]
    next: listing.Next = ""


def view(item: queue.Queue) -> QueueView:
    """Return a queue as the API shows it."""
    problems = (one.message for one in item.status.conditions if one.type == "Valid" and one.status == "False")
    return QueueView(name=item.metadata.name, spec=item.spec, status=item.status, problem=next(problems, ""))
