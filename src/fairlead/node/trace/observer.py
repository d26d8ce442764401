"""What the agent sees of the pods on its node: who holds which device, who is told of it, which steps are recorded.

One follower of the node's pods and one reader of the kubelet's list serve both parts: `marking` in either home, and
`attribution` where the kubelet is not ours and records nothing itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fairlead.node.deviceplugin import podresources
from fairlead.node.inventory import latest, monitor, pods
from fairlead.node.publish import podcondition
from fairlead.node.trace import foreignkubelet
from fairlead.plan.gpu import advertise
from fairlead.plan.gpu.attribution import Call, Grant
from fairlead.settings import Settings
from fairlead.store.port import Store
from fairlead.wire.proto import deviceplugin_pb2 as pb


class Observer:
    """One node's."""

    def __init__(
        self,
        settings: Settings,
        node: str,
        store: Store,
        *,
        snapshots: latest.Latest[monitor.Snapshot],
        advertised: latest.Latest[tuple[advertise.Advertisement, ...]],
        recall: Callable[[Grant], pb.ContainerAllocateResponse | None],
        records_steps: bool,
    ) -> None:
        """Take the sources; nothing is read or written before `run`.

        Args:    recall: what a plugin answers for a grant now.   records_steps: the kubelet does not do so itself.
        """
        self._advertised = advertised
        self._pods = pods.Pods(node, store)
        self._holdings = podresources.Holdings(settings.pod_resources)
        self._marking = podcondition.PodConditions(
            node=node,
            store=store,
            pods=self._pods,
            holdings=self._holdings,
            snapshots=snapshots,
            advertised=advertised,
        )
        self._attribution = (
            foreignkubelet.ForeignKubelet(
                node=node,
                store=store,
                pods=self._pods,
                holdings=self._holdings,
                resources=self._resources,
                recall=recall,
                cdi_folder=settings.node.cdi_folder,
            )
            if records_steps
            else None
        )

    def told(self, call: Call) -> None:
        """Take in what a plugin answered."""
        if self._attribution is not None:
            self._attribution.told(call)
        else:
            self._holdings.ask()

    async def run(self) -> None:
        """Watch for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._holdings.run(), name="pod resources")
            tasks.create_task(self._marking.run(), name="marking")
            if self._attribution is not None:
                tasks.create_task(self._attribution.run(), name="attribution")
                tasks.create_task(self._follow_resources(self._attribution), name="resources")
            await self._pods.run()

    def _resources(self) -> tuple[str, ...]:
        return tuple(one.resource for one in self._advertised.value)

    async def _follow_resources(self, recording: foreignkubelet.ForeignKubelet) -> None:
        known: tuple[str, ...] = ()
        async for _ in self._advertised.changes():
            if self._resources() != known:
                known = self._resources()
                recording.look_again()
