"""Keeps the pods of ReplicaSets at their number, as `plan.workload.replicaset` decides."""

from __future__ import annotations

import contextlib
import secrets

import msgspec

from fairlead import errors
from fairlead.control.manager import Watch
from fairlead.control.workload.owner import REFUSED_S, Owners, itself, owner_of, split
from fairlead.plan.workload import podset, replicaset
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.apps import Deployment, ReplicaSet


class ReplicaSets:
    """A controller."""

    name = "replicaset"

    def __init__(self, owners: Owners) -> None:
        """Take what makes and finds pods."""
        self._owners = owners

    def watches(self) -> tuple[Watch, ...]:
        """Follow ReplicaSets and their pods."""
        return (Watch(kind=ReplicaSet, keys=itself), Watch(kind=core.Pod, keys=owner_of(ReplicaSet)))

    async def reconcile(self, key: str) -> float | None:
        """Bring the pods of one ReplicaSet to their number."""
        namespace, name = split(key)
        with contextlib.suppress(errors.NotFound):
            return await self._keep(await self._owners.store.get(ReplicaSet, name, namespace))
        return None

    async def _keep(self, item: ReplicaSet) -> float | None:
        owners = self._owners
        plan = replicaset.plan(item, await owners.owned(core.Pod, item), owners.clock())
        if plan.status != item.status:
            item = await owners.store.update_status(msgspec.structs.replace(item, status=plan.status))
        names = (podset.name(item.metadata.name, podset.suffix(secrets.token_hex())) for _ in range(plan.make))
        made = (podset.pod(item, item.spec.template, name) for name in names)
        await owners.remove(plan.remove, item)
        if not await owners.make(made, item, await self._maker(item)):
            return REFUSED_S
        return plan.wake_s

    async def _maker(self, item: ReplicaSet) -> Deployment | ReplicaSet:
        """Return the Deployment that a person made, which says whose its pods are."""
        for one in item.metadata.owner_references:
            if one.kind == Deployment.KIND:
                with contextlib.suppress(errors.NotFound):
                    return await self._owners.store.get(Deployment, one.name, item.metadata.namespace)
        return item
