"""Keeps the numbered pods of StatefulSets, as `plan.workload.statefulset` decides."""

from __future__ import annotations

import contextlib

import msgspec

from fairlead import errors
from fairlead.control.manager import Watch
from fairlead.control.workload.owner import REFUSED_S, Owners, itself, owner_of, split
from fairlead.plan.workload import statefulset
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.apps import StatefulSet


class StatefulSets:
    """A controller."""

    name = "statefulset"

    def __init__(self, owners: Owners) -> None:
        """Take what makes and finds pods."""
        self._owners = owners

    def watches(self) -> tuple[Watch, ...]:
        """Follow StatefulSets and their pods."""
        return (Watch(kind=StatefulSet, keys=itself), Watch(kind=core.Pod, keys=owner_of(StatefulSet)))

    async def reconcile(self, key: str) -> float | None:
        """Bring the pods of one StatefulSet one step further."""
        namespace, name = split(key)
        with contextlib.suppress(errors.NotFound):
            return await self._keep(await self._owners.store.get(StatefulSet, name, namespace))
        return None

    async def _keep(self, item: StatefulSet) -> float | None:
        owners = self._owners
        plan = statefulset.plan(item, await owners.owned(core.Pod, item), owners.clock())
        if plan.status != item.status:
            item = await owners.store.update_status(msgspec.structs.replace(item, status=plan.status))
        await owners.remove(plan.remove, item)
        for claim in plan.claims:
            try:
                await owners.maker.make_claim(claim, item)
            except (errors.RequestError, errors.Denied) as error:
                await owners.tell(item, "FailedCreate", f"Error creating volume: {errors.sentence(error)}")
                return REFUSED_S
        if not await owners.make(plan.make, item):
            return REFUSED_S
        return plan.wake_s
