"""Keeps the condition and the taint of this node's Node object true to the health of its GPUs.

The inventory's snapshots and the Node are followed; what should be is planned by `plan.gpu.nodecondition`, and written
by a work queue with back-off at the version that was read, so that neither the kubelet's conditions nor an operator's
taints are lost. A taint whose setting was taken away goes with the agent's next start.
"""

from __future__ import annotations

import asyncio
from typing import Final

from fairlead import telemetry
from fairlead.node.inventory import latest
from fairlead.plan.gpu import nodecondition
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta
from fairlead.workqueue import WorkQueue

_CONDITION: Final = "condition"
_TAINT: Final = "taint"


class NodeConditions:
    """What one Node says of its GPUs."""

    def __init__(
        self,
        *,
        store: Store,
        node: latest.Latest[core.Node | None],
        snapshots: latest.Latest[Snapshot],
        has_condition: bool,
        taint: str,
    ) -> None:
        """Take the sources; nothing is written before `run`. Args: taint: its effect; empty: none."""
        self._store, self._node, self._snapshots = store, node, snapshots
        self._has_condition, self._effect = has_condition, taint
        self._queue = WorkQueue("node condition", self._work)

    async def run(self, meter: telemetry.Meter = telemetry.UNMETERED) -> None:
        """Keep both true for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._queue.run(meter), name="node condition")
            tasks.create_task(self._node.follow(lambda _: self._check()), name="node condition: node")
            tasks.create_task(self._snapshots.follow(lambda _: self._check()), name="node condition: health")

    def _found(self) -> nodecondition.NodeHealth | None:
        snapshot = self._snapshots.value
        every = (*snapshot.verdicts.items(), *snapshot.device_verdicts.items())
        return nodecondition.judge(len(snapshot.known) or len(snapshot.verdicts), every)

    def _check(self) -> None:
        node = self._node.value
        if node is None or not self._snapshots.value.is_scanned:
            return
        if self._planned_condition(node) is not node:
            self._queue.add(_CONDITION)
        if self._planned_taint(node) is not node:
            self._queue.add(_TAINT)

    def _planned_condition(self, node: core.Node) -> core.Node:
        return nodecondition.plan_condition(node, self._found(), now=meta.now()) if self._has_condition else node

    def _planned_taint(self, node: core.Node) -> core.Node:
        return nodecondition.plan_taint(node, self._found(), effect=self._effect)

    async def _work(self, key: str) -> None:
        node = self._node.value
        if node is None:
            return  # asked for again once it is there
        if key == _CONDITION:
            await retry.change_status(self._store, core.Node, node.metadata.name, self._planned_condition)
        else:
            await retry.change(self._store, core.Node, node.metadata.name, self._planned_taint)
