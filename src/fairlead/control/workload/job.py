"""Runs Jobs to their end, as `plan.workload.job` decides.

The order of the writes is the plan's: first the status that notes what has ended, then the finalizers, then new pods.
"""

from __future__ import annotations

import contextlib
import secrets

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.control.workload.owner import REFUSED_S, Owners, itself, owner_of, split
from fairlead.plan.workload import job
from fairlead.store import retry
from fairlead.store.port import Selector
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.workloads.batch import Job


class Jobs:
    """A controller."""

    name = "job"

    def __init__(self, owners: Owners, *, backoff_s: float = 10.0) -> None:
        """Take what makes and finds pods. Args: backoff_s: before a pod in place of the first that failed."""
        self._owners, self._backoff_s = owners, backoff_s

    def watches(self) -> tuple[Watch, ...]:
        """Follow Jobs and their pods."""
        return (Watch(kind=Job, keys=itself), Watch(kind=core.Pod, keys=owner_of(Job)))

    async def reconcile(self, key: str) -> float | None:
        """Bring one Job one step further; pods of one that is gone are let go."""
        namespace, name = split(key)
        try:
            item = await self._owners.store.get(Job, name, namespace)
        except errors.NotFound:
            listed = await self._owners.store.list(core.Pod, Selector(namespace=namespace, labels={job.NAME: name}))
            await self._release(listed.items)
            return None
        return await self._keep(item)

    async def _keep(self, item: Job) -> float | None:
        owners = self._owners
        pods = await owners.owned(core.Pod, item)
        plan = job.plan(item, pods, owners.clock(), seed=secrets.token_hex(), backoff_s=self._backoff_s)
        if plan.status != item.status:
            telemetry.crash_point("job.before-status")
            item = await owners.store.update_status(msgspec.structs.replace(item, status=plan.status))
            telemetry.crash_point("job.after-status")
        await self._release(plan.release)
        if plan.is_expired:
            await owners.remove((item,), item)
            return None
        await owners.remove(plan.remove, item)
        if not await owners.make(plan.make, item):
            return REFUSED_S
        return plan.wake_s

    async def _release(self, pods: tuple[core.Pod, ...]) -> None:
        """Take the finalizer from pods."""

        def without(pod: core.Pod) -> core.Pod:
            left = tuple(one for one in pod.metadata.finalizers if one != job.FINALIZER)
            return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, finalizers=left))

        for one in pods:
            if job.FINALIZER in one.metadata.finalizers:
                with contextlib.suppress(errors.NotFound):
                    about = one.metadata
                    await retry.change(self._owners.store, core.Pod, about.name, without, namespace=about.namespace)
                telemetry.crash_point("job.after-release")
