"""Declares the types of what the API answers of containers' lives.

Made by tools/generate_client.py from the API's description; edit what it describes, then run that program.
"""

from __future__ import annotations

from fairlead.client.record import Record


class CostView(Record, frozen=True, kw_only=True):
    """`CostView` of the API."""

    currency: str
    amount: str
    """Decimal."""
    hourly: str
    """What an hour costs as it is now, decimal."""
    gpu_seconds: float
    """GPU time held; a GPU shared by several counts in parts."""
    unpriced_seconds: float
    """Part of gpu_seconds on GPUs without a price."""


class Held(Record, frozen=True, kw_only=True):
    """`Held` of the API."""

    namespace: str
    """Empty: another tenancy's, together."""
    name: str
    """Empty: another user's, whose names are not yours to read."""
    count: int
    since: str | None
    """Since when; null: not known."""


class PhaseView(Record, frozen=True, kw_only=True):
    """`PhaseView` of the API."""

    name: str
    """Queued, preparing, starting, running or stopping."""
    started_at: str
    ended_at: str | None
    """Null: it is in this phase now."""
    duration_s: float
    """Until now, if it is in this phase now."""


class ProofView(Record, frozen=True, kw_only=True):
    """`ProofView` of the API."""

    lease: str
    """Name of the GPULease."""
    gpu: str
    model: str
    """Empty: not known any more."""
    state: str
    """Held, Releasing, Released, Verified, Quarantined or Lost."""
    held_at: str
    ended_at: str | None
    """Null: the container has it."""
    verified_by: str
    """Report by which it was found clean before; quick: its readings were good; empty: none is known."""
    report: str
    """Report by which it was found clean after; empty: not yet."""


class Waiting(Record, frozen=True, kw_only=True):
    """`Waiting` of the API."""

    reason: str
    """WillNeverFit, WaitingForDevices, WaitingForResources, WaitingForPort, WaitingForScheduler, WaitingForGroup,
    WaitingForQueue, MakingRoom or NoNodeFits."""
    message: str
    """One line for a person."""
    resource: str = ""
    """What is lacking; empty where it is not an amount."""
    asked: float = 0
    free: float = 0
    total: float = 0
    """What that node has, whether healthy or not."""
    unhealthy: float = 0
    node: str = ""
    holders: tuple[Held, ...] = ()
    """Who has it on that node, most first."""
    place: int = 0
    """In the queue for it, 1 is next; 0: not queued."""
    queued: int = 0
    """Containers that wait for it."""
    estimate: str | None = None
    """Free by then at the latest, by the time limits of what runs; null: nothing says when."""
