"""Keeps a DeviceTaintRule in the cluster for each ill device, a GPU or of MIG, that NVIDIA's DRA driver publishes.

A scheduler then gives no claim the GPU, and with `NoExecute` the pods that have it are ended. What should be is planned
by `plan.dra.devicetaint`; each change of a verdict is written once, with back-off, and rules of an earlier life of the
agent that are no longer true are taken away. While something is ill, what the driver publishes is looked at again and
again: it makes and removes MIG devices. Without a setting nothing is asked of the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from fairlead import errors, telemetry
from fairlead.node.inventory import latest
from fairlead.plan.dra import devicetaint
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.store.port import Selector, Store
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.devicetaintrule import SERVED, DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from fairlead.workqueue import WorkQueue

_ALL: Final = "rules"
_AGAIN_S: Final = 30.0


class DeviceTaints:
    """The taints of one node's devices."""

    def __init__(
        self,
        *,
        store: Store,
        node: latest.Latest[core.Node | None],
        snapshots: latest.Latest[Snapshot],
        effect: str,
    ) -> None:
        """Take the sources; nothing is written before `run`. Args: effect: empty: none ever."""
        self._store, self._node, self._snapshots, self._effect = store, node, snapshots, effect
        self._written: devicetaint.UnhealthyDevices | None = None
        """For what rules were written. None: what an earlier agent left was not looked at yet."""
        self._queue = WorkQueue("device taints", self._work)

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Keep the rules true for ever; without an effect, do nothing."""
        if not self._effect:
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(meter), name="device taints")
            tasks.create_task(self._node.follow(lambda _: self._check()), name="device taints: node")
            tasks.create_task(self._snapshots.follow(lambda _: self._check()), name="device taints: health")

    def _ill(self) -> devicetaint.UnhealthyDevices | None:
        node, snapshot = self._node.value, self._snapshots.value
        if node is None or not snapshot.is_scanned:
            return None
        return devicetaint.find_unhealthy(snapshot.known, snapshot.verdicts, snapshot.device_verdicts)

    def _check(self) -> None:
        if (ill := self._ill()) is not None and ill != self._written:
            self._queue.add(_ALL)

    async def _work(self, _: str) -> float | None:
        ill, node = self._ill(), self._node.value
        if ill is None or node is None:
            return None  # asked for again once both are known
        of_node = Selector(labels=devicetaint.labels_of(node.metadata.name))
        kind, there = await self._served(of_node)
        published = await self._published(node.metadata.name) if ill else ()
        wanted = devicetaint.plan_rules(node, ill, published, effect=self._effect)
        for rule in devicetaint.find_stale(there, wanted):
            with contextlib.suppress(errors.NotFound):
                await self._store.delete(kind, rule.metadata.name)
        named = {rule.metadata.name for rule in there if any(devicetaint.is_same(rule, one) for one in wanted)}
        for rule in wanted:
            if rule.metadata.name not in named:
                with contextlib.suppress(errors.Conflict):  # it is there
                    await self._store.create(kind(metadata=rule.metadata, spec=rule.spec))
        self._written = ill
        return _AGAIN_S if ill else None

    async def _served(self, selector: Selector) -> tuple[type[DeviceTaintRule], tuple[DeviceTaintRule, ...]]:
        """Return the newest version in which the API server has the kind, and the rules.

        Raises: Unavailable: it has it in none.
        """
        for kind in SERVED:
            with contextlib.suppress(errors.NotFound):
                return kind, (await self._store.list(kind, selector)).items
        message = f"the API server serves no DeviceTaintRules ({', '.join(kind.API_VERSION for kind in SERVED)})"
        hint = (
            "Kubernetes 1.37, or 1.36 with --runtime-config=resource.k8s.io/v1beta2=true; or unset health.device_taint"
        )
        raise errors.Unavailable(message, reason="DeviceTaintRulesUnknown", hint=hint)

    async def _published(self, node: str) -> tuple[ResourceSlice, ...]:
        own = Selector(fields={"spec.nodeName": node, "spec.driver": devicetaint.DRIVER})
        return tuple((await self._store.list(ResourceSlice, own)).items)
