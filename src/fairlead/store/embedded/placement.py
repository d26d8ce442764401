"""Binds and evicts pods in the embedded stores, where both are writes to the object."""

from __future__ import annotations

import msgspec

from fairlead import errors
from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core, meta


class EmbeddedPlacement:
    """A `subresource.Placement` without disruption budgets: an eviction deletes, for other pods it stops."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def bind(self, pod: core.Pod, node: str) -> None:
        """See `subresource.Placement.bind`: written at the version that was decided on."""
        about = pod.metadata
        fresh = await self._store.get(core.Pod, about.name, about.namespace)
        if fresh.metadata.uid != about.uid or fresh.spec.node_name:
            message = f'pod "{about.name}" is on node "{fresh.spec.node_name}", or is another one of its name'
            raise errors.Conflict(message, reason="AlreadyBound", hint="read the pod again")
        spec = msgspec.structs.replace(pod.spec, node_name=node)
        await self._store.update(msgspec.structs.replace(pod, spec=spec))

    async def evict(self, pod: core.Pod, *, grace_s: int | None, why: str = "", reason: str = "Preempted") -> None:
        """See `subresource.Placement.evict`."""
        about = pod.metadata
        if why:
            stop = core.StopRequest(requested_at=meta.now(), grace_period_seconds=grace_s, reason=reason, message=why)

            def stopped(fresh: core.Pod) -> core.Pod | None:
                if fresh.metadata.uid != about.uid:
                    message = f'another pod is called "{about.name}" by now'
                    raise errors.Conflict(message, reason="UidMismatch", hint="the pod that was meant is gone")
                if fresh.status.stop_request is not None:
                    return None
                return msgspec.structs.replace(fresh, status=msgspec.structs.replace(fresh.status, stop_request=stop))

            await retry.change_status(self._store, core.Pod, about.name, stopped, namespace=about.namespace)
            return
        wait_s = None if grace_s is None else max(1, grace_s)
        await self._store.delete(core.Pod, about.name, about.namespace, grace_s=wait_s, uid=about.uid)
