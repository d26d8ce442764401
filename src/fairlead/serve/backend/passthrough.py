"""Describes the GPUs that one machine gives to virtual machines whole: those that are bound to VFIO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from fairlead.model.driver import DriverFiles
from fairlead.plan.dra import passthrough
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.lease.row import State
from fairlead.serve.backend import hardware

_NOBODY: Mapping[str, tuple[hardware.Holder, ...]] = MappingProxyType({})


def list_passthrough(
    drivers: Iterable[DriverFiles],
    *,
    node: str,
    holders: Mapping[str, tuple[hardware.Holder, ...]] = _NOBODY,
    states: Mapping[str, str] | None = None,
) -> tuple[hardware.PassthroughView, ...]:
    """Return every GPU that is bound to VFIO, in the drivers' order.

    Args: holders: by its key.   states: of the ledger, by its key; None: there is none.
    """
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
            device="" if one.number is None else passthrough.device_name(one),
            holders=holders.get(one.key, ()),
            lease="" if states is None else states.get(one.key, State.UNKNOWN.value),
        )
        for driver in drivers
        for one in driver.passthrough
    )


def holders_by_gpu(
    advertised: Iterable[advertise.Advertisement],
    granted: Iterable[hardware.Holder],
    claimed: Iterable[hardware.Holder],
) -> dict[str, tuple[hardware.Holder, ...]]:
    """Return who has each GPU, by its key: a slot's holder has all of its GPUs, a claim's device is one."""
    gpus = {(ad.resource, str(device.id)): device.gpus for ad in advertised for device in ad.devices if device.slot}
    found: dict[str, tuple[hardware.Holder, ...]] = {}
    for holder in granted:
        for gpu in gpus.get((holder.resource, holder.device), ()):
            found[gpu] = (*found.get(gpu, ()), holder)
    for holder in claimed:
        found[holder.device] = (*found.get(holder.device, ()), holder)
    return found
