"""Finds which containers hold each GPU and MIG device, from the kubelet's list. Pure.

A device that several containers share has several holders: each of them by its own id, the replica's. Devices of other
plugins and of DRA drivers count, as far as their ids can be read (`plan.gpu.deviceids`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairlead.model import replica
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.attribution import Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A container that has a GPU or MIG device, or one of its replicas."""

    namespace: str
    pod: str
    container: str
    resource: str
    """The extended resource, or the DRA driver."""
    device: str
    """The id by which the kubelet gave it."""

    @property
    def name(self) -> str:
        """The container's name in its node, `namespace/pod/container`."""
        return f"{self.namespace}/{self.pod}/{self.container}"

    @property
    def replica(self) -> str:
        """The number of the replica, `2`; empty: the container has the device to itself."""
        return self.device.removeprefix(replica.origin(self.device)).removeprefix(replica.SEPARATOR)


def find_holders(holdings: Iterable[Holding], table: deviceids.Table) -> Mapping[str, tuple[Holder, ...]]:
    """Return who holds what, by UUID of the GPU or MIG device, each container's device once.

    Args:    table: this machine's GPUs by every word for them (`deviceids.make_table`).
    """
    found: dict[str, dict[tuple[str, str], Holder]] = {}
    for holding in holdings:
        for device in holding.ids:
            holder = Holder(
                namespace=holding.namespace,
                pod=holding.pod,
                container=holding.container,
                resource=holding.resource,
                device=device,
            )
            for part in deviceids.find_parts(holding.resource, device, table):
                # A DRA claim names one device several times: by its name and by its CDI names.
                found.setdefault(part.mig or part.gpu, {}).setdefault((holder.name, holder.replica), holder)
    return {uuid: tuple(holders.values()) for uuid, holders in found.items()}
