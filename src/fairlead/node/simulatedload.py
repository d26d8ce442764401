"""Gives simulated GPUs the load of those who hold them; real GPUs notice by themselves."""

from __future__ import annotations

from fairlead import telemetry
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.metrics import holder
from fairlead.silicon.port import Workloads


async def run(
    workloads: Workloads | None,
    holdings: podresources.Holdings,
    snapshots: latest.Latest[Snapshot],
    meter: telemetry.Meter,
) -> None:
    """Follow the kubelet's list, for ever. Args: workloads: of the silicon; None: it is real."""
    if workloads is None:
        return
    meter.heartbeat("simulated load", None)
    async for held in holdings.latest.changes():
        found = holder.find_holders(held or (), deviceids.make_table(snapshots.value.known.values()))
        workloads.hold({uuid: tuple(one.name for one in holders) for uuid, holders in found.items()})
