"""Replaces a pod by another one of its name, so that the end of the service at any moment does not lose it.

What is to be done is stored first, as a `PodReplacement`, and removed last. A service that starts carries on what it
finds there (`Replacements.carry_on`). Each step looks at what is there already, so it may be done a second time: the
old pod is known by its uid, and a pod of its name with another uid is the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from fairlead import errors, telemetry
from fairlead.model.container.step import TraceStep
from fairlead.serve.backend import place
from fairlead.serve.backend.containers import pods
from fairlead.serve.backend.place import Submission
from fairlead.serve.closing import closing
from fairlead.store import retry, tracerecorder
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.devicechange import PodReplacement, PodReplacementSpec


class Submitter(Protocol):
    """What stores the new pod."""

    async def submit(self, asked: Submission) -> core.Pod:
        """Store a pod. Raises: as `port.Lifecycle.submit`."""
        ...

    async def end(self, pod: core.Pod, *, grace_s: int | None) -> None:
        """Ask for a pod's end and removal; one that is gone, or has a namesake by now, is left alone."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacements:
    """Replacements of one machine's pods."""

    store: Store
    submitter: Submitter
    under_way: set[tuple[str, str]] = field(default_factory=set)
    """Namespace and name of those that this process carries out."""

    async def replace(self, old: core.Pod, spec: PodReplacementSpec) -> core.Pod:
        """Store what is to be done, do it, and return the new pod.

        Raises: Conflict: another replacement of the pod is under way, or the pod was removed meanwhile; what storing
                the new pod raises.
        """
        about = old.metadata
        with self._claimed(about.namespace, about.name):
            return await self._carry_out(await self._store(about, spec))

    async def carry_on(self) -> None:
        """Finish what an earlier process left. What cannot be finished is logged, recorded and given up."""
        left = (await self.store.list(PodReplacement)).items
        async with asyncio.TaskGroup() as group:
            for one in left:
                group.create_task(self._carry_on(one), name=f"replace {one.metadata.name}")

    async def drop(self, name: str, namespace: str) -> None:
        """Forget a replacement: its pod is not to come back."""
        with contextlib.suppress(errors.NotFound):
            await self.store.delete(PodReplacement, name, namespace)

    @contextlib.contextmanager
    def _claimed(self, namespace: str, name: str) -> Iterator[None]:
        """Keep others of this process away from a pod's replacement."""
        if (namespace, name) in self.under_way:
            message = f'container "{name}" is being restarted already'
            raise errors.Conflict(message, reason="RestartPending", hint=f"`fairlead wait {name}`, then ask again")
        self.under_way.add((namespace, name))
        try:
            yield
        finally:
            self.under_way.discard((namespace, name))

    async def _store(self, about: meta.ObjectMeta, spec: PodReplacementSpec) -> PodReplacement:
        # What stands here and is not under way was left by a request that failed half-way.
        await self.drop(about.name, about.namespace)
        wanted = PodReplacement(metadata=meta.ObjectMeta(name=about.name, namespace=about.namespace), spec=spec)
        stored = await self.store.create(wanted)
        telemetry.crash_point("replacement.after-store")
        return stored

    async def _carry_on(self, left: PodReplacement) -> None:
        about, old = left.metadata, left.spec.pod_uid
        if (about.namespace, about.name) in self.under_way:
            return  # asked for again meanwhile
        with self._claimed(about.namespace, about.name):
            try:
                found = await self._find(about)
                if found is not None and found.metadata.uid != old:
                    await self.drop(about.name, about.namespace)  # the new one, stored before the end
                    return
                await self._carry_out(left)
            except errors.FairleadError as error:
                await self._give_up(left, error)
                return
        telemetry.log.info("restart carried on", pod=about.name, namespace=about.namespace)

    async def _give_up(self, left: PodReplacement, error: errors.FairleadError) -> None:
        about = left.metadata
        telemetry.log.error(
            "restart not carried on",
            pod=about.name,
            namespace=about.namespace,
            reason=error.reason,
            error=error.message,
        )
        message = f"was stopped for a restart and not started again: {error.message}"
        step = TraceStep(
            layer="api",
            reason="RestartFailed",
            message=message,
            at=time.time(),
            duration_s=0.0,
            facts={"reason": error.reason},
            is_warning=True,
        )
        gone = tracerecorder.reference(left.spec.pod)
        await tracerecorder.record(self.store, msgspec.structs.replace(gone, uid=left.spec.pod_uid), step)

    async def _find(self, about: meta.ObjectMeta) -> core.Pod | None:
        try:
            return await self.store.get(core.Pod, about.name, about.namespace)
        except errors.NotFound:
            return None

    async def _carry_out(self, asked: PodReplacement) -> core.Pod:
        about, spec = asked.metadata, asked.spec
        try:
            await self._end_old(about, spec)
            if not await self._is_wanted(asked):
                message = f'container "{about.name}" was removed while it was restarted'
                raise errors.Conflict(message, reason="ContainerGone", hint="`fairlead run` makes a new one")
            telemetry.crash_point("replacement.before-submit")
            created = await self.submitter.submit(place.recorded(spec))
            telemetry.crash_point("replacement.after-submit")
        except errors.Unavailable:
            raise  # the next service tries again
        except errors.FairleadError:
            await self._forget(asked)
            raise
        await self._forget(asked)
        return created

    async def _forget(self, asked: PodReplacement) -> None:
        """Remove the request itself; it must not undo what the caller learns."""
        about = asked.metadata
        with contextlib.suppress(errors.FairleadError):
            await self.store.delete(PodReplacement, about.name, about.namespace, uid=about.uid)

    async def _end_old(self, about: meta.ObjectMeta, spec: PodReplacementSpec) -> None:
        """Return once the old pod is gone. Who follows its output learns first that another one comes."""

        def replaced(pod: core.Pod) -> core.Pod | None:
            return _marked(pod) if pod.metadata.uid == spec.pod_uid else None

        try:
            old = await retry.change(self.store, core.Pod, about.name, replaced, namespace=about.namespace)
        except errors.NotFound:
            return
        if old.metadata.uid != spec.pod_uid:
            return
        telemetry.crash_point("replacement.after-mark")
        await self.submitter.end(old, grace_s=spec.grace_period_seconds)
        telemetry.crash_point("replacement.after-delete")
        async with closing(pods.follow(self.store, old)) as changes:
            async for _ in changes:
                pass

    async def _is_wanted(self, asked: PodReplacement) -> bool:
        """Say whether the request is still there: a removal of the container takes it away."""
        try:
            found = await self.store.get(PodReplacement, asked.metadata.name, asked.metadata.namespace)
        except errors.NotFound:
            return False
        return found.metadata.uid == asked.metadata.uid


def _marked(pod: core.Pod) -> core.Pod:
    """Return a pod that says that another one takes its place."""
    about = pod.metadata
    annotations = {**about.annotations, names.REPLACED: "true"}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(about, annotations=annotations))
