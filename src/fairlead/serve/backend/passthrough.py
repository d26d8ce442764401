"""Describes the GPUs that one machine gives to virtual machines whole: those that are bound to VFIO."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.driver import DriverFiles
from fairlead.serve.backend import hardware


def list_passthrough(drivers: Iterable[DriverFiles], *, node: str) -> tuple[hardware.PassthroughView, ...]:
    """Return every GPU that is bound to VFIO, in the drivers' order."""
    return tuple(
        hardware.PassthroughView(
            key=one.key,
            node=node,
            address=one.address,
            vendor=one.vendor.value,
            model=one.model,
            module=one.module,
            group=one.group,
            driver=one.driver,
            numa_node=one.numa_node,
            nodes=tuple(each.path for each in (*one.group_nodes, *one.iommufd_nodes)),
            message=one.problem,
        )
        for driver in drivers
        for one in driver.passthrough
    )
