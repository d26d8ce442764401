"""Composes the controllers of workloads on one machine, and the way of their pods through the API's own door."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairlead import errors
from fairlead.control.manager import Controller
from fairlead.control.workload import cronjob, deployment, disruption, job, replicaset, statefulset
from fairlead.control.workload.owner import Owners
from fairlead.serve.admission import budget
from fairlead.serve.admission.context import Context
from fairlead.serve.backend import workloads
from fairlead.serve.backend.containers.lifecycle import LocalLifecycle
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta


@dataclass(slots=True)
class PodMaker:
    """A `control.workload.port.PodMaker`: each pod is judged as if who made its workload had sent it."""

    living: LocalLifecycle
    hold: Path
    """While this file is there, no pod is made: `fairlead down` removes them."""
    context: Context | None = None
    """With which submissions are judged; None: the API does not serve yet."""

    async def make(self, pod: core.Pod, owner: meta.Object) -> core.Pod:
        """See `PodMaker.make`."""
        await budget.check(self._ready(), pod.metadata.namespace)
        return await self.living.submit(workloads.submission(pod, owner))

    async def make_claim(self, claim: core.PersistentVolumeClaim, owner: meta.Object) -> None:
        """See `PodMaker.make_claim`."""
        place = workloads.submission(core.Pod(metadata=claim.metadata), owner).place
        volumes = self._ready().backend.volumes
        await volumes.create(claim.metadata.name, place, labels=claim.metadata.labels, size="")

    def _ready(self) -> Context:
        if self.context is None:
            raise errors.Unavailable("the service is starting", reason="ServiceStarting", hint="it is tried again")
        if self.hold.exists():
            message = "containers are being removed by `fairlead down`"
            raise errors.Unavailable(message, reason="ServiceStopping", hint="workloads go on with the next start")
        return self.context


def hold_file(run: Path) -> Path:
    """Return the file that keeps workloads from making pods. Args: run: the folder of sockets."""
    return run / "hold-workloads"


def controllers(store: Store, making: PodMaker) -> tuple[Controller, ...]:
    """Return the controllers of every kind of workload."""
    owners = Owners(store, making)
    return (
        replicaset.ReplicaSets(owners),
        deployment.Deployments(owners),
        statefulset.StatefulSets(owners),
        job.Jobs(owners),
        cronjob.CronJobs(owners),
        disruption.Disruptions(owners),
    )
