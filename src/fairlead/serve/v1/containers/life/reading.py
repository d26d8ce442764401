"""Reads the data behind a container's phases, cost and verifications."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from fairlead import errors
from fairlead.model.container.step import TraceStep
from fairlead.plan import trace
from fairlead.plan.metering import container
from fairlead.plan.metering.price import Pricing
from fairlead.plan.metering.usage import MICROS
from fairlead.plan.pod import phase
from fairlead.plan.sandbox import startphase
from fairlead.serve.backend import port
from fairlead.serve.v1.containers.life.view import CostView, PhaseView, ProofView, StartPartView, StartPhaseView
from fairlead.serve.v1.dependencies import Services
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.text import timestamp

T = TypeVar("T", bound=Object)


async def told(services: Services, pod: core.Pod, steps: Sequence[TraceStep]) -> dict[str, Any]:
    """Return the fields of a view that describe a container's life; other containers have none of them."""
    now = time.time()
    whole = await with_first_output(services, pod, trace.with_statuses(trace.with_acceptance(steps, pod), pod))
    leases = await _all(services, GPULease)
    models = {one.metadata.name: one.spec.product for one in (await _all(services, GPUDevice) if leases else ())}
    return {
        "phases": _phases(pod, steps, now=now),
        "start": tuple(map(_start, startphase.phases(whole))),
        "cost": _cost(pod, leases, models, services.backend.metering.pricing, now=now) if leases else None,
        "gpu_leases": _proofs(pod, leases, models),
    }


async def with_first_output(services: Services, pod: core.Pod, steps: Sequence[TraceStep]) -> tuple[TraceStep, ...]:
    """Return the steps with the first output of a pod's first container, where no controller records it."""
    outputs = port.find(services.backend.first_outputs)
    started = min((step.at for step in steps if step.reason == "ContainerStarted"), default=None)
    at = await outputs.first_output(pod) if outputs is not None and started is not None else None
    return tuple(steps) if at is None else (*steps, startphase.first_output(pod, started=started or at, at=at))


async def _all(services: Services, kind: type[T]) -> tuple[T, ...]:
    """Return the objects of a kind; none where the cluster does not know it, or its user may not read it."""
    try:
        return tuple((await services.census.list(kind)).items)
    except (errors.NotFound, errors.Denied):
        return ()


def _start(one: startphase.Phase) -> StartPhaseView:
    """Describe one phase of a start."""
    parts = (
        StartPartView(name=part.name, started_at=timestamp.emit(part.begin), duration_s=round(part.seconds, 6))
        for part in one.parts
    )
    begun = timestamp.emit(one.begin)
    return StartPhaseView(name=one.name, started_at=begun, duration_s=round(one.seconds, 6), parts=tuple(parts))


def _phases(pod: core.Pod, steps: Sequence[TraceStep], *, now: float) -> tuple[PhaseView, ...]:
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


def _cost(
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


def _proofs(pod: core.Pod, leases: Iterable[GPULease], models: Mapping[str, str]) -> tuple[ProofView, ...]:
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
