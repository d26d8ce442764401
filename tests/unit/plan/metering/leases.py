"""GPULeases made by hand for tests of metering."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.wire.kubernetes import gpudevice, gpulease, meta
from fairlead.wire.kubernetes.gpulease import GPULease

MODELS = {"gpu-1": "NVIDIA H100 80GB HBM3", "gpu-2": "NVIDIA L40S"}


def lease(
    name: str, began: float, ended: float | None, *, gpu: int = 1, of: Sequence[str] = ("lab",), state: str = ""
) -> GPULease:
    """Return a lease that containers of these namespaces had; `ended` None: it is held."""
    holders = tuple(
        gpudevice.Holder(namespace=one, pod="p", container="main", resource="nvidia.com/gpu", devices=()) for one in of
    )
    return GPULease(
        metadata=meta.ObjectMeta(name=name),
        spec=gpulease.GPULeaseSpec(
            node_name="n", gpu=f"GPU-{gpu}", gpu_device=f"gpu-{gpu}", epoch=1, held_at=meta.emit_time(began)
        ),
        status=gpulease.GPULeaseStatus(
            state=state or (gpulease.HELD if ended is None else gpulease.VERIFIED),
            holders=holders,
            ended_at="" if ended is None else meta.emit_time(ended),
        ),
    )


async def keep(store: Store, *leases: GPULease) -> None:
    """Store leases with their status, which a creation leaves out."""
    for one in leases:
        await store.create(one)

        def told(found: GPULease, one: GPULease = one) -> GPULease:
            return msgspec.structs.replace(found, status=one.status)

        await retry.change_status(store, GPULease, one.metadata.name, told)
