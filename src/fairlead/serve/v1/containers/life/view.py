"""Describes a container's life: its phases, what it costs, and what verified its GPUs; only the types."""

from __future__ import annotations

from typing import Annotated

import msgspec


class PhaseView(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a container's life."""

    name: Annotated[str, msgspec.Meta(description="queued, preparing, starting, running or stopping")]
    started_at: str
    ended_at: Annotated[str | None, msgspec.Meta(description="null: it is in this phase now")]
    duration_s: Annotated[float, msgspec.Meta(description="until now, if it is in this phase now")]


class StartPartView(msgspec.Struct, frozen=True, kw_only=True):
    """One part of the making of a container's sandbox."""

    name: Annotated[
        str,
        msgspec.Meta(
            description="of a virtual machine: engine, QEMU, firmware, kernel and init, driver; pod, pull, container"
        ),
    ]
    started_at: str
    duration_s: float


class StartPhaseView(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a container's start; they add up to all of it."""

    name: Annotated[str, msgspec.Meta(description="admission, slot, activation, pull, sandbox or first output")]
    started_at: str
    duration_s: float
    parts: Annotated[
        tuple[StartPartView, ...],
        msgspec.Meta(description="what the phase is made of, where more is known: a machine's boot, a pull"),
    ] = ()


class CostView(msgspec.Struct, frozen=True, kw_only=True):
    """What a container has cost so far, by the possessions of GPUs that are written down."""

    currency: str
    amount: Annotated[str, msgspec.Meta(description="decimal")]
    hourly: Annotated[str, msgspec.Meta(description="what an hour costs as it is now, decimal")]
    gpu_seconds: Annotated[float, msgspec.Meta(description="GPU time held; a GPU shared by several counts in parts")]
    unpriced_seconds: Annotated[float, msgspec.Meta(description="part of gpu_seconds on GPUs without a price")]


class ProofView(msgspec.Struct, frozen=True, kw_only=True):
    """One possession of a GPU by a container, and what it was verified by."""

    lease: Annotated[str, msgspec.Meta(description="name of the GPULease")]
    gpu: str
    model: Annotated[str, msgspec.Meta(description="empty: not known any more")]
    state: Annotated[str, msgspec.Meta(description="Held, Releasing, Released, Verified, Quarantined or Lost")]
    held_at: str
    ended_at: Annotated[str | None, msgspec.Meta(description="null: the container has it")]
    verified_by: Annotated[
        str,
        msgspec.Meta(
            description="report by which it was found clean before; quick: its readings were good; empty: none is known"
        ),
    ]
    report: Annotated[str, msgspec.Meta(description="report by which it was found clean after; empty: not yet")]
