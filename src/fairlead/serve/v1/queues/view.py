"""Describes queues and how they stand; without the web framework."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes.scheduling import queue


class IdleRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of containers whose GPUs are idle; a field that is left out stays as it is, 0 is the parent's."""

    action: Annotated[str | None, msgspec.Meta(description="off, warn, stop or requeue; empty: as its parent's")] = None
    below_percent: Annotated[float, msgspec.Meta(ge=0, le=100, description="load below which a GPU is idle")] | None = (
        None
    )
    after_seconds: Annotated[int, msgspec.Meta(ge=0, le=31_536_000, description="idle for so long: warned")] | None = (
        None
    )
    warn_seconds: Annotated[int, msgspec.Meta(ge=0, le=31_536_000, description="from warning to end")] | None = None
    cpu_percent: Annotated[float, msgspec.Meta(ge=0, description="of a CPU: who uses so much is busy")] | None = None
    io_bytes: Annotated[int, msgspec.Meta(ge=0, description="a second: who moves so much is busy")] | None = None
    exempt: (
        Annotated[
            tuple[str, ...],
            msgspec.Meta(description="namespaces, tenancies, accounts of the machine, or NAMESPACE/CONTAINER"),
        ]
        | None
    ) = None


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
    idle: Annotated[IdleRequest | None, msgspec.Meta(description="what becomes of idle GPUs, on one machine")] = None


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
