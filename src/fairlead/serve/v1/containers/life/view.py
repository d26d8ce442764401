"""Describes a container's life: its phases, what it costs, and what verified its GPUs; without the web framework."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

import msgspec

from fairlead.model.step import TraceStep
from fairlead.plan.metering import container
from fairlead.plan.metering.price import Pricing
from fairlead.plan.metering.usage import MICROS
from fairlead.plan.pod import phase
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.wire.text import timestamp


class PhaseView(msgspec.Struct, frozen=True, kw_only=True):
    """One phase of a container's life."""

    name: Annotated[str, msgspec.Meta(description="queued, preparing, starting, running or stopping")]
    started_at: str
    ended_at: Annotated[str | None, msgspec.Meta(description="null: it is in this phase now")]
    duration_s: Annotated[float, msgspec.Meta(description="so far, of the phase that it is in")]


class CostView(msgspec.Struct, frozen=True, kw_only=True):
    """What a container has cost so far, by the possessions of GPUs that are written down."""

    currency: str
    amount: Annotated[str, msgspec.Meta(description="decimal")]
    hourly: Annotated[str, msgspec.Meta(description="what an hour costs as it is now, decimal")]
    gpu_seconds: Annotated[float, msgspec.Meta(description="held; a GPU that several shared counts in parts")]
    unpriced_seconds: Annotated[float, msgspec.Meta(description="of it, of GPUs that have no price")]


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


def phases(pod: core.Pod, steps: Sequence[TraceStep], *, now: float) -> tuple[PhaseView, ...]:
    """Describe the phases of a pod."""
    return tuple(
        PhaseView(
            name=one.name,
            started_at=timestamp.emit(one.begin),
            ended_at=None if one.end is None else timestamp.emit(one.end),
            duration_s=round(max(0.0, (now if one.end is None else one.end) - one.begin), 6),
        )
        for one in phase.phases(pod, steps)
    )


def cost(
    pod: core.Pod, leases: Iterable[GPULease], models: Mapping[str, str], pricing: Pricing, *, now: float
) -> CostView:
    """Describe what a pod has cost."""
    found = container.standing(pod, leases, models, pricing, now=now)
    return CostView(
        currency=pricing.currency,
        amount=f"{found.amount:f}",
        hourly=f"{found.hourly:f}",
        gpu_seconds=found.held / MICROS,
        unpriced_seconds=found.unpriced / MICROS,
    )


def proofs(pod: core.Pod, leases: Iterable[GPULease], models: Mapping[str, str]) -> tuple[ProofView, ...]:
    """Describe the possessions that a pod had a part in, the oldest first."""
    return tuple(
        ProofView(
            lease=one.metadata.name,
            gpu=one.spec.gpu,
            model=models.get(one.spec.gpu_device, ""),
            state=one.status.state,
            held_at=one.spec.held_at,
            ended_at=one.status.ended_at or None,
            verified_by=one.spec.verified_by,
            report=one.status.report,
        )
        for one in container.leases_of(pod, leases)
    )
