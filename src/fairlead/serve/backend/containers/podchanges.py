"""Changes pods that run on one machine, by the rules that they were judged by themselves."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from fairlead import errors
from fairlead.model.container.step import TraceStep
from fairlead.plan.gpu.allocation import foreignrequest
from fairlead.plan.pod.life import restart
from fairlead.plan.pod.running import ephemeral, rename, resize
from fairlead.serve.backend.containers import checks, pods
from fairlead.serve.backend.place import Place
from fairlead.store import retry, tracerecorder
from fairlead.store.port import AdmittingStore, Reader, Selector
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.devicechange import PodReplacement


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalPodChanges:
    """A `port.PodChanges` whose kubelet starts what the pod's spec says."""

    store: AdmittingStore
    resource: str = "nvidia.com/gpu"
    """What refusals name where it asks for GPUs by other means."""

    async def add(self, pod: core.Pod, item: core.EphemeralContainer, place: Place) -> core.Pod:
        """See `port.PodChanges.add`.

        Only the new container is judged: the pod's own were, by the rules of their day.
        """
        alone = core.Pod(metadata=pod.metadata, spec=core.PodSpec(containers=(item,)))
        place.submission(alone)
        about = dataclasses.replace(place, namespace=pod.metadata.namespace)
        document = {"metadata": {}, "spec": {"ephemeralContainers": [msgspec.to_builtins(item)]}}
        foreign = foreignrequest.refusal(alone, resource=self.resource)
        asked = checks.Admitted(pod=pod, place=about, written=document, foreign=foreign)
        here = Selector(namespace="")
        seen = [one for kind in (core.Namespace, Tenancy) for one in (await self.store.list(kind, here)).items]
        checks.check_joining(checks.Listed(seen), asked)

        def with_it(found: core.Pod) -> core.Pod | None:
            if found.metadata.uid != pod.metadata.uid:
                raise pods.not_found(pod.metadata.name, pod.metadata.namespace)
            return ephemeral.added(found, item)

        try:
            return await retry.change(
                self.store, core.Pod, pod.metadata.name, with_it, namespace=pod.metadata.namespace
            )
        except errors.NotFound as error:
            raise pods.not_found(pod.metadata.name, pod.metadata.namespace) from error

    async def judge_resize(self, pod: core.Pod, wanted: resize.Wanted) -> core.Pod:
        """See `port.PodChanges.judge_resize`."""
        changed = resize.resized(pod, wanted(pod))
        if changed is None:
            return pod
        here = Selector(namespace=pod.metadata.namespace)
        quotas = (await self.store.list(core.ResourceQuota, here)).items
        checks.check_size(checks.Listed((*quotas, *(await self.store.list(core.Pod, here)).items)), changed)
        return changed

    async def resize(self, pod: core.Pod, wanted: resize.Wanted) -> core.Pod:
        """See `port.PodChanges.resize`."""
        about = pod.metadata

        def with_them(found: core.Pod) -> core.Pod | None:
            if found.metadata.uid != about.uid:
                raise pods.not_found(about.name, about.namespace)
            return resize.resized(found, wanted(found))

        try:
            return await retry.change_checked(
                self.store, core.Pod, about.name, with_them, checks.check_size, namespace=about.namespace
            )
        except errors.NotFound as error:
            raise pods.not_found(about.name, about.namespace) from error

    async def rename(self, pod: core.Pod, name: str) -> core.Pod:
        """See `port.PodChanges.rename`; records that it was renamed."""
        about = pod.metadata

        def check(seen: Reader) -> None:
            for one in seen.list(PodReplacement, about.namespace):
                if one.metadata.name in {about.name, name}:
                    message = f'container "{one.metadata.name}" is being restarted'
                    hint = f"`fairlead wait {one.metadata.name}`, then ask again"
                    raise errors.Conflict(message, reason="RestartPending", hint=hint)

        for left in reversed(range(retry.ROUNDS)):
            found = await pods.find_pod(self.store, about.name, about.namespace)
            if found.metadata.uid != about.uid:
                raise pods.not_found(about.name, about.namespace)
            if (refused := rename.refusal(found, name)) is not None:
                raise refused
            started = time.monotonic()
            try:
                renamed = await self.store.rename(found, name, check)
            except errors.Conflict as error:
                if error.reason == "AlreadyExists":
                    raise pods.taken(name, about.namespace) from error
                if error.reason != "StaleVersion" or not left:
                    raise
                continue
            message = f'renamed from "{about.name}" to "{name}"'
            step = TraceStep(
                layer="api",
                reason="Renamed",
                message=message,
                at=time.time(),
                duration_s=time.monotonic() - started,
                facts={"before": about.name},
            )
            await tracerecorder.record(self.store, tracerecorder.reference(renamed), step)
            return renamed
        raise AssertionError("the last round returns or raises")

    async def set_conditions(self, pod: core.Pod, conditions: Sequence[meta.Condition]) -> core.Pod:
        """See `port.PodChanges.set_conditions`."""

        def with_them(found: core.Pod) -> core.Pod | None:
            if found.metadata.uid != pod.metadata.uid:
                raise pods.not_found(pod.metadata.name, pod.metadata.namespace)
            status = restart.with_gates(found, conditions, at=meta.now())
            return None if status == found.status else msgspec.structs.replace(found, status=status)

        about = pod.metadata
        try:
            return await retry.change_status(self.store, core.Pod, about.name, with_them, namespace=about.namespace)
        except errors.NotFound as error:
            raise pods.not_found(about.name, about.namespace) from error
