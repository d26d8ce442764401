"""Composes what the agent does with a store: objects and labels, pods, conditions, traces.

These parts are there only where the agent has a store. The devices that a kubelet gets depend on the Node object alone,
which belongs to the core.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from fairlead import telemetry
from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, nodeobject, pods
from fairlead.node.lease import ledgerpath
from fairlead.node.publish import devicetaint, features, nodecondition, objects, podcondition
from fairlead.node.trace import foreignkubelet, starts, watchclient
from fairlead.plan.gpu import attribution
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.plan.lease import verification
from fairlead.plan.supply import Supply
from fairlead.settings import Settings
from fairlead.silicon import firmware
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core
from fairlead.wire.proto import deviceplugin_pb2 as pb

if TYPE_CHECKING:
    from fairlead.node.publish import baselines, leases


class Passthrough(Protocol):
    """What is told of GPUs that are passed through."""

    @property
    def fabric_manager(self) -> latest.Latest[str] | None:
        """As `objects.Publisher` takes it."""
        ...

    @property
    def activation(self) -> foreignkubelet.Activation | None:
        """Says when a device's NVLink partition was activated; None: the node has none."""
        ...


class StoreParts:
    """What the agent does with a store."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        store: Store,
        *,
        snapshots: latest.Latest[Snapshot],
        supply: latest.Latest[Supply],
        holdings: podresources.Holdings,
        recall: Callable[[attribution.Grant], pb.ContainerAllocateResponse | None] | None,
        passthrough: Passthrough | None = None,
    ) -> None:
        """Compose; nothing runs yet.

        Args:    supply: what the node gives away.
                 recall: gives the answer that a device plugin remembers, where the kubelet is foreign and records no
                 steps of containers; None: the kubelet records them.
                 passthrough: GPUs that are passed through; None: none is.
        """
        self.mig = objects.MIGPublication(strategy=latest.Latest(settings.node.mig_strategy))
        """What the node's labels say of MIG; the agent keeps it true."""
        machine = firmware.product_name(settings.silicon.root)
        self.node = nodeobject.NodeObject(node, store)
        self.publisher = objects.Publisher(
            self.node,
            store,
            snapshots=snapshots,
            machine=machine,
            nvidia_resource=settings.node.resource,
            mig=self.mig,
            supply=supply,
            labelling=labelling(settings, store),
            fabric_manager=passthrough.fabric_manager if passthrough is not None else None,
        )
        self.pods = pods.Pods(node, store)
        self._holdings = holdings
        self.leases = _leases(settings, node, store, snapshots, self.pods)
        self.baselines = _baselines(settings, store, self.node.node)
        self.conditions = podcondition.PodConditions(
            node=node,
            store=store,
            pods=self.pods,
            holdings=holdings,
            snapshots=snapshots,
            supply=supply,
            uids=self.publisher.uids,
        )
        wants = settings.health
        self.node_conditions = nodecondition.NodeConditions(
            store=store,
            node=self.node.node,
            snapshots=snapshots,
            has_condition=wants.node_condition,
            taint=wants.node_taint,
        )
        self.device_taints = devicetaint.DeviceTaints(
            store=store, node=self.node.node, snapshots=snapshots, effect=wants.device_taint
        )
        self.trace = (
            foreignkubelet.ForeignKubelet(
                node=node,
                store=store,
                pods=self.pods,
                holdings=holdings,
                supply=supply,
                recall=recall,
                cdi_folder=settings.node.cdi_folder,
                watch=watchclient.Program(log_level=settings.log.level, log_format=settings.log.format),
            )
            if recall is not None
            else None
        )
        if self.trace is not None:
            counting = starts.Starts(store, node, objectives=settings.control.start_objectives)
            self.trace.count_start = counting.count
            self.trace.activation = passthrough.activation if passthrough is not None else None

    async def follow_pods(self, _: telemetry.Meter) -> None:
        """Follow this node's pods for ever; it waits for the store alone, whose watches have limits of their own."""
        await self.pods.run()

    async def publish_health(self, meter: telemetry.Meter) -> None:
        """Keep the Node's conditions and the device taints current; never returns."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.node_conditions.run(meter))
            tasks.create_task(self.device_taints.run(meter))

    def allocated(self, call: attribution.Call) -> None:
        """Take in what a plugin answered: the kubelet's list is about to change."""
        if self.trace is not None:
            self.trace.told(call)
        else:
            self._holdings.ask()


def _leases(
    settings: Settings, node: str, store: Store, snapshots: latest.Latest[Snapshot], known: pods.Pods
) -> leases.Leases | None:
    """Return what publishes possessions, None where there is no ledger: then nothing of SQLite is loaded."""
    if settings.lease.ledger != "on":
        return None
    from fairlead.node.publish import leases

    file, keep_days = settings.lease_folder / ledgerpath.NAME, settings.lease.keep_days
    return leases.Leases(node, store, file, snapshots=snapshots, pods=known, keep_days=keep_days)


def _baselines(settings: Settings, store: Store, node: latest.Latest[core.Node | None]) -> baselines.Baselines | None:
    """Return what publishes firmware baselines, None where nothing is verified against any."""
    if settings.lease.ledger != "on" or settings.lease.reuse == verification.Reuse.LOOK.value:
        return None
    from fairlead.node.publish import baselines

    return baselines.Baselines(store, settings.lease_folder, node)


def labelling(settings: Settings, store: Store) -> objects.Labelling:
    """Return how the settings would have the Node labelled."""
    chosen = settings.labels
    ways: dict[str, features.Features] = {
        "node-feature": features.FeatureObject(store, settings.cluster.namespace),
        "file": features.FeatureFile(chosen.file),
    }
    return objects.Labelling(
        features=ways.get(chosen.way),
        started=None if chosen.no_timestamp else int(time.time()),
        has_aliases=chosen.aliases,
        gvisor=str(settings.silicon.root / chosen.gvisor.lstrip("/")) if chosen.gvisor else "",
    )
