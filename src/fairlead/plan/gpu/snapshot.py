"""Defines what is known of a node's GPUs at one moment, as the inventory publishes it to the agent's parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fairlead.model.driver import DeviceNode, DriverFiles, PassthroughGPU, PassthroughSwitch
from fairlead.model.gpu import GPU, Inventory
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.gpu import health as rules


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What is known of this node's GPUs."""

    inventory: Inventory = field(default_factory=Inventory)
    drivers: tuple[DriverFiles, ...] = ()
    verdicts: Mapping[GPUUUID, rules.Verdict] = field(default_factory=dict)
    device_verdicts: Mapping[MIGUUID, rules.Verdict] = field(default_factory=dict)
    """Of MIG devices beside their GPUs'; one without has none against it."""
    known: Mapping[GPUUUID, GPU] = field(default_factory=dict)
    """The last good reading of every GPU in the inventory, unreadable ones too."""
    is_scanned: bool = False
    """False until the first scan ended, well or not."""
    problem: str = ""
    """Why the driver does not answer; empty while it does."""

    @property
    def passthrough(self) -> tuple[PassthroughGPU, ...]:
        """Return the GPUs that have no driver here and are given to tenants' machines whole."""
        return tuple(gpu for driver in self.drivers for gpu in driver.passthrough)

    @property
    def ill(self) -> frozenset[GPUUUID]:
        """Return the GPUs that cannot be handed out for what they are themselves."""
        judged = (uuid for uuid, verdict in self.verdicts.items() if not verdict.is_healthy)
        return frozenset((*judged, *(gpu.key for gpu in self.passthrough if gpu.problem)))

    @property
    def switches(self) -> tuple[PassthroughSwitch, ...]:
        """Return the NVSwitches that a Service VM's pod may be given."""
        return tuple(one for driver in self.drivers for one in driver.switches)

    @property
    def partitions(self) -> tuple[tuple[int, ...], ...]:
        """Return the module numbers of each NVLink partition of several GPUs."""
        return tuple(one for driver in self.drivers for one in driver.partitions)

    @property
    def partition_ids(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Return id and module numbers of every NVLink partition."""
        return tuple(one for driver in self.drivers for one in driver.partition_ids)


def list_nodes(drivers: Iterable[DriverFiles]) -> list[DeviceNode]:
    """Return every device node that an answer to Allocate may name."""
    found: list[DeviceNode] = []
    for driver in drivers:
        found += (*driver.nodes, *driver.vfio_nodes, *(node for vgpu in driver.vgpus for node in vgpu.nodes))
        found += (node for gpu in driver.passthrough for node in (*gpu.group_nodes, *gpu.iommufd_nodes))
        found += (node for one in driver.switches for node in (*one.group_nodes, *one.iommufd_nodes))
        found += (node for _, files in driver.companions for device in files.devices for node in device.nodes)
    return found
