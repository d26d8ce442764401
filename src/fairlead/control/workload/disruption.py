"""Keeps the status of PodDisruptionBudgets, as `plan.workload.disruption` decides.

A key is a namespace: whatever changes in it may change each of its budgets, which are few.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fairlead import errors
from fairlead.control.manager import Watch
from fairlead.control.workload.owner import Owners
from fairlead.plan.workload import disruption
from fairlead.store.port import Change, Selector
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling.policy import PodDisruptionBudget
from fairlead.wire.kubernetes.workloads.apps import ReplicaSet, StatefulSet


class Disruptions:
    """A controller."""

    name = "disruption"

    def __init__(self, owners: Owners) -> None:
        """Take what finds pods."""
        self._owners = owners

    def watches(self) -> tuple[Watch, ...]:
        """Follow budgets, pods, and what says how many of them there are to be."""
        return tuple(Watch(kind=kind, keys=_space) for kind in (PodDisruptionBudget, core.Pod, ReplicaSet, StatefulSet))

    async def reconcile(self, key: str) -> float | None:
        """Bring the budgets of one namespace up to date."""
        store, where = self._owners.store, Selector(namespace=key)
        budgets = (await store.list(PodDisruptionBudget, where)).items
        if not budgets:
            return None
        pods = (await store.list(core.Pod, where)).items
        sets: list[ReplicaSet | StatefulSet] = [*(await store.list(ReplicaSet, where)).items]
        sets += (await store.list(StatefulSet, where)).items
        replicas = {one.metadata.uid: 1 if one.spec.replicas is None else one.spec.replicas for one in sets}
        for item in budgets:
            status = disruption.status(item, pods, replicas, self._owners.clock())
            if status != item.status:
                try:
                    await store.update_status(msgspec.structs.replace(item, status=status))
                except errors.NotFound:
                    continue
        return None


def _space(change: Change[meta.Object]) -> Iterable[str]:
    yield change.object.metadata.namespace
