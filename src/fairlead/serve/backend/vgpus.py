"""Describes the vGPUs that one machine lends: by the driver's files, what the agent offers and who holds what."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPU
from fairlead.plan.gpu.offer import advertise, vgpuoffer
from fairlead.serve.backend import hardware


def list_vgpus(
    drivers: Iterable[DriverFiles],
    gpus: Iterable[GPU],
    advertised: Iterable[advertise.Advertisement],
    holders: Iterable[hardware.Holder],
    *,
    node: str,
) -> tuple[hardware.VGPUView, ...]:
    """Return every vGPU with its resource, health and holders, in the drivers' order."""
    offered = {device.vgpu: (ad.resource, device) for ad in advertised for device in ad.devices if device.vgpu}
    boards, held = tuple(gpus), tuple(holders)
    found = []
    for one in (vgpu for driver in drivers for vgpu in driver.vgpus):
        resource, device = offered.get(one.id, ("", None))
        found.append(
            hardware.VGPUView(
                id=one.id,
                node=node,
                parent=one.parent,
                type=vgpuoffer.type_of(one, boards),
                resource=resource,
                health="" if device is None else "Healthy" if device.is_healthy else "Unhealthy",
                reason=device.reason if device is not None else "",
                message=one.problem,
                holders=tuple(holder for holder in held if holder.device == one.id),
            )
        )
    return tuple(found)


def list_lenders(drivers: Iterable[DriverFiles]) -> tuple[hardware.VGPULenderView, ...]:
    """Return the GPUs that can lend vGPUs, and what each may still create."""
    return tuple(
        hardware.VGPULenderView(
            address=one.address,
            functions=one.functions,
            most_functions=one.most_functions,
            creatable=tuple(name for name, _ in one.creatable),
        )
        for driver in drivers
        for one in driver.lenders
    )
