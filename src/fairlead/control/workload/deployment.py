"""Keeps the ReplicaSets of Deployments, as `plan.workload.deployment` decides."""

from __future__ import annotations

import contextlib

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.control.workload.owner import Owners, itself, owner_of, split
from fairlead.plan.workload import deployment
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.apps import Deployment, ReplicaSet


class Deployments:
    """A controller."""

    name = "deployment"

    def __init__(self, owners: Owners) -> None:
        """Take what finds and removes what is owned."""
        self._owners = owners

    def watches(self) -> tuple[Watch, ...]:
        """Follow Deployments and their ReplicaSets, whose status says what their pods do."""
        return (Watch(kind=Deployment, keys=itself), Watch(kind=ReplicaSet, keys=owner_of(Deployment)))

    async def reconcile(self, key: str) -> float | None:
        """Bring the ReplicaSets of one Deployment one step further."""
        namespace, name = split(key)
        with contextlib.suppress(errors.NotFound):
            return await self._keep(await self._owners.store.get(Deployment, name, namespace))
        return None

    async def _keep(self, item: Deployment) -> float | None:
        owners, store = self._owners, self._owners.store
        sets = await owners.owned(ReplicaSet, item)
        uids = {one.metadata.uid for one in sets}
        listed = await store.list(core.Pod, Selector(namespace=item.metadata.namespace))
        pods = [pod for pod in listed.items if any(one.uid in uids for one in pod.metadata.owner_references)]
        plan = deployment.plan(item, sets, pods, owners.clock())
        if plan.status != item.status:
            item = await store.update_status(msgspec.structs.replace(item, status=plan.status))
        if plan.make is not None:
            telemetry.crash_point("deployment.before-make")
            with contextlib.suppress(errors.Conflict):  # made before the end of an earlier process
                await store.create(plan.make)
        if plan.newest is not None:
            await store.update(plan.newest)
            return plan.wake_s  # its number of pods is decided on the object as it is then
        for one, number in plan.scale:
            spec = msgspec.structs.replace(one.spec, replicas=number)
            await store.update(msgspec.structs.replace(one, spec=spec))
            telemetry.crash_point("deployment.after-scale")
        await owners.remove(plan.remove, item)
        # A pod of an old template that goes frees a Recreate; its ReplicaSet does not change with it.
        waits = item.spec.strategy.type == deployment.RECREATE and deployment.newest(item, sets) is None
        return 1.0 if waits or _is_waiting(item, plan) else plan.wake_s


def _is_waiting(item: Deployment, plan: deployment.Plan) -> bool:
    """Return whether a Deployment that replaces all at once waits for the last old pod to be gone."""
    if item.spec.strategy.type != deployment.RECREATE:
        return False
    return plan.status.updated_replicas < deployment.wanted_replicas(item)
