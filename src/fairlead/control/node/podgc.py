"""Deletes ended pods (the oldest beyond a limit, and those whose TTL is over) and the events of deleted pods.

Ends pods that are bound to a node which is not this machine: no kubelet would ever report their end, and nothing could
remove them.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable

import msgspec

from fairlead import errors
from fairlead.control.manager import Watch
from fairlead.plan.pod import machine, podstate
from fairlead.settings import ControlSettings
from fairlead.store import retry
from fairlead.store.port import Change, ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core

_SWEEP = "ended-pods"
_GONE = "gone:"
_TTL = "ttl:"
_ELSEWHERE = "elsewhere:"


class PodGC:
    """Keeps the newest `control.finished_pods` ended pods."""

    name = "podgc"

    def __init__(self, store: Store, settings: ControlSettings, *, node: str = "") -> None:
        """Take the store and the limit. Args: node: the only one there is; empty: others are not judged."""
        self._store = store
        self._settings = settings
        self._node = node
        self._ended: dict[str, core.Pod] = {}
        self._seen: dict[str, float] = {}
        """When a pod with a TTL was first seen to have ended, by uid, on the monotonic clock."""

    def watches(self) -> tuple[Watch, ...]:
        """Follow pods."""
        return (Watch(kind=core.Pod, keys=self._changed, reset=self._ended.clear),)

    def _changed(self, change: Change[core.Pod]) -> Iterable[str]:
        pod = change.object
        if change.renamed_to:
            return ()
        if change.kind is ChangeKind.DELETED:
            self._ended.pop(pod.metadata.uid, None)
            self._seen.pop(pod.metadata.uid, None)
            return (f"{_GONE}{pod.metadata.uid}",)
        keys = []
        if pod.status.phase in core.ENDED_PHASES:
            self._ended[pod.metadata.uid] = pod
            if (pod.spec.machine or core.MachineOptions()).ttl_seconds_after_finished is not None:
                keys.append(f"{_TTL}{pod.metadata.uid}")
        if machine.is_elsewhere(pod, self._node) and (not podstate.is_final(pod) or pod.metadata.deletion_timestamp):
            keys.append(f"{_ELSEWHERE}{pod.metadata.namespace}/{pod.metadata.name}")
        if len(self._ended) > self._settings.finished_pods:
            keys.append(_SWEEP)
        return keys

    async def reconcile(self, key: str) -> float | None:
        """Remove one pod's events, or the oldest ended pods."""
        if key.startswith(_GONE):
            await self._forget(key.removeprefix(_GONE))
            return None
        if key.startswith(_TTL):
            return await self._remove_in_time(key.removeprefix(_TTL))
        if key.startswith(_ELSEWHERE):
            await self._end_elsewhere(*key.removeprefix(_ELSEWHERE).split("/", 1))
            return None
        by_age = sorted(self._ended.values(), key=lambda pod: pod.metadata.creation_timestamp or "")
        for pod in by_age[: max(0, len(by_age) - self._settings.finished_pods)]:
            with contextlib.suppress(errors.NotFound, errors.Conflict):
                await self._store.delete(core.Pod, pod.metadata.name, pod.metadata.namespace, uid=pod.metadata.uid)
        return None

    async def _remove_in_time(self, uid: str) -> float | None:
        """Delete an ended pod whose TTL is over, or return the seconds that are left of it."""
        pod = self._ended.get(uid)
        if pod is None or pod.spec.machine is None:
            return None
        now = time.monotonic()
        left_s = self._seen.setdefault(uid, now) + (pod.spec.machine.ttl_seconds_after_finished or 0) - now
        if left_s > 0:
            return left_s
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self._store.delete(core.Pod, pod.metadata.name, pod.metadata.namespace, uid=uid)
        return None

    async def _end_elsewhere(self, namespace: str, name: str) -> None:
        """End a pod whose node is not here, and remove it where that was asked for."""

        def ended(pod: core.Pod) -> core.Pod | None:
            if podstate.is_final(pod) or not machine.is_elsewhere(pod, self._node):
                return None
            message = f'its node "{pod.spec.node_name}" is not here: this machine is the node "{self._node}"'
            return msgspec.structs.replace(pod, status=podstate.lost(pod, message))

        with contextlib.suppress(errors.NotFound):
            pod = await retry.change_status(self._store, core.Pod, name, ended, namespace=namespace)
            if pod.metadata.deletion_timestamp and machine.is_elsewhere(pod, self._node):
                await self._store.delete(core.Pod, name, namespace, grace_s=0, uid=pod.metadata.uid)

    async def _forget(self, uid: str) -> None:
        listing = await self._store.list(core.Event, Selector(fields={"involvedObject.uid": uid}))
        for event in listing.items:
            with contextlib.suppress(errors.NotFound):
                await self._store.delete(core.Event, event.metadata.name, event.metadata.namespace)
