"""Reads what a container's phases, cost and verifications are told from."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from fairlead import errors
from fairlead.model.step import TraceStep
from fairlead.serve.v1.containers.life import view as lifeview
from fairlead.serve.v1.dependencies import Services
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import GPUDevice
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.wire.kubernetes.meta import Object

T = TypeVar("T", bound=Object)


async def told(services: Services, pod: core.Pod, steps: Sequence[TraceStep]) -> dict[str, Any]:
    """Return the fields of a view that tell of a container's life; of others it tells nothing."""
    now = time.time()
    leases = await _all(services, GPULease)
    models = {one.metadata.name: one.spec.product for one in (await _all(services, GPUDevice) if leases else ())}
    return {
        "phases": lifeview.phases(pod, steps, now=now),
        "cost": lifeview.cost(pod, leases, models, services.backend.metering.pricing, now=now) if leases else None,
        "gpu_leases": lifeview.proofs(pod, leases, models),
    }


async def _all(services: Services, kind: type[T]) -> tuple[T, ...]:
    """Return the objects of a kind; none where the cluster does not know it, or its user may not read it."""
    try:
        return tuple((await services.census.list(kind)).items)
    except (errors.NotFound, errors.Denied):
        return ()
