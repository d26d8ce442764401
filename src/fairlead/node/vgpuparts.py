"""Joins the vGPUs that this machine lends to what the agent offers; `plan.gpu.offer` decides what becomes of them."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.driver import DeviceNode, DriverFiles
from fairlead.node.inventory import monitor
from fairlead.plan.gpu.offer import advertise, vgpuoffer


def with_vgpus(
    offered: tuple[advertise.Advertisement, ...], snapshot: monitor.Snapshot, resource: str
) -> tuple[advertise.Advertisement, ...]:
    """Add the vGPUs that are lent, and leave out their boards. Args: resource: that of whole GPUs."""
    lent = vgpuoffer.plan_vgpus(
        snapshot.drivers,
        snapshot.inventory,
        domain=resource.partition("/")[0],
        verdicts=snapshot.verdicts,
        known=snapshot.known,
        taken={ad.resource for ad in offered},
    )
    return (*vgpuoffer.without_lenders(offered, snapshot.drivers, snapshot.known), *lent)


def list_nodes(drivers: Iterable[DriverFiles]) -> list[DeviceNode]:
    """Return every device node that an answer to Allocate may name."""
    found: list[DeviceNode] = []
    for driver in drivers:
        found += (*driver.nodes, *driver.vfio_nodes, *(node for vgpu in driver.vgpus for node in vgpu.nodes))
        found += (node for _, files in driver.companions for device in files.devices for node in device.nodes)
    return found
