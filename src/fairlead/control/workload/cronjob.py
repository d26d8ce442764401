"""Makes Jobs at times, as `plan.workload.cronjob` decides."""

from __future__ import annotations

import contextlib
import datetime as dt

import msgspec

from fairlead import errors, telemetry
from fairlead.control.manager import Watch
from fairlead.control.workload.owner import Owners, itself, owner_of, split
from fairlead.plan.workload import cronjob
from fairlead.wire.kubernetes import meta, names
from fairlead.wire.kubernetes.workloads.batch import CronJob, Job
from fairlead.wire.text import timezone


class CronJobs:
    """A controller."""

    name = "cronjob"

    def __init__(self, owners: Owners) -> None:
        """Take what finds and removes what is owned."""
        self._owners = owners

    def watches(self) -> tuple[Watch, ...]:
        """Follow CronJobs and their Jobs."""
        return (Watch(kind=CronJob, keys=itself), Watch(kind=Job, keys=owner_of(CronJob)))

    async def reconcile(self, key: str) -> float | None:
        """Make the Job that is due, and remove the old ones."""
        namespace, name = split(key)
        with contextlib.suppress(errors.NotFound):
            return await self._keep(await self._owners.store.get(CronJob, name, namespace))
        return None

    async def _keep(self, item: CronJob) -> float | None:
        owners, now = self._owners, self._owners.clock()
        own = dt.datetime.fromtimestamp(now).astimezone().tzinfo or dt.UTC
        zone = timezone.zone(item.spec.time_zone) if item.spec.time_zone else None
        plan = cronjob.plan(item, await owners.owned(Job, item), now, zone or own)
        await owners.remove(plan.remove, item)
        if plan.make is not None:
            telemetry.crash_point("cronjob.before-make")
            with contextlib.suppress(errors.Conflict):  # made before the end of an earlier process
                await owners.store.create(_of_maker(plan.make, item))
            telemetry.crash_point("cronjob.after-make")
        if plan.status != item.status:
            await owners.store.update_status(msgspec.structs.replace(item, status=plan.status))
        return plan.wake_s


def _of_maker(made: Job, item: CronJob) -> Job:
    """Return a Job that says whose its pods are, as its CronJob does."""
    marks = {key: value for key, value in item.metadata.annotations.items() if names.is_own(key)}
    about: meta.ObjectMeta = msgspec.structs.replace(made.metadata, annotations={**made.metadata.annotations, **marks})
    return msgspec.structs.replace(made, metadata=about)
