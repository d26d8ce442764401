"""Has the embedded kubelet give a running container a GPU, or take one from it.

Nothing is done here: the request becomes a `DeviceChange` of the pod, its node's kubelet decides and acts (only its
checkpoint says what is free) and answers in the request's status, and the request is removed. A kubelet that does not
know such requests (a real one) never answers: then the request is removed and the caller refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model.gpu import GPU, Inventory
from fairlead.serve.backend.containers import pods
from fairlead.serve.backend.deviceview import DeviceChanged, EndedProcess, NodeChange
from fairlead.serve.closing import closing
from fairlead.store.port import ChangeKind, Store
from fairlead.wire.kubernetes import core, devicechange
from fairlead.wire.kubernetes.devicechange import DeviceChange, DeviceChangeSpec

ANSWER_S: Final = 45.0
"""Longer than a kubelet takes to ask a plugin and to end the processes that have the device open."""
_TRIES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDeviceChanges:
    """A `port.DeviceChanges` over `DeviceChange` objects."""

    store: Store
    scan: Callable[[], Inventory]
    """The latest scan."""

    def device_id(self, text: str) -> str:
        """See `port.DeviceChanges.device_id`."""
        return device_id(self.scan().gpus, text)

    async def carry_out(self, pod: core.Pod, wanted: DeviceChangeSpec) -> DeviceChanged:
        """See `port.DeviceChanges.carry_out`."""
        asked = await self._request(pod, wanted)
        try:
            answered = await self._answer(asked)
        except TimeoutError as error:
            await self._remove(asked)
            message = f"the kubelet of {pod.spec.node_name} did not act on the device change within {ANSWER_S:g} s"
            hint = "only Fairlead's own kubelet can; `fairlead attach --pid` works on the node itself"
            raise errors.Unavailable(message, reason="KubeletCannot", hint=hint) from error
        if answered is None:
            message = f'container "{pod.metadata.name}" went away before its devices were changed'
            raise errors.Conflict(message, reason="ContainerGone", hint=f"`fairlead trace {pod.metadata.name}`")
        await self._remove(answered)
        return _outcome(answered)

    async def _request(self, pod: core.Pod, wanted: DeviceChangeSpec) -> DeviceChange:
        """Store the request. Raises: Conflict (`ChangePending`): another one waits.

        One that is answered, or whose pod is gone, was left by an API that was killed; it makes room.
        """
        item = devicechange.request(pod, wanted)
        for left in reversed(range(_TRIES)):
            try:
                return await self.store.create(item)
            except errors.Conflict as error:
                if error.reason != "AlreadyExists" or not left:
                    raise
            with contextlib.suppress(errors.NotFound):
                found = await self.store.get(DeviceChange, item.metadata.name, item.metadata.namespace)
                if found.spec.pod_uid == wanted.pod_uid and not found.status.phase:
                    message = f'a change of the devices of "{wanted.pod_name}" is under way already'
                    raise errors.Conflict(message, reason="ChangePending", hint="ask again when it is done")
                await self._remove(found)
        raise AssertionError("the last round returns or raises")

    async def _remove(self, change: DeviceChange) -> None:
        about = change.metadata
        # Another request may have its name by now.
        with contextlib.suppress(errors.NotFound, errors.Conflict):
            await self.store.delete(DeviceChange, about.name, about.namespace, uid=about.uid)

    async def _answer(self, asked: DeviceChange) -> DeviceChange | None:
        """Return the request with its answer, None where it went away with its pod. Raises: TimeoutError."""
        async with asyncio.timeout(ANSWER_S), closing(pods.follow(self.store, asked)) as changes:
            async for seen in changes:
                if seen.kind is not ChangeKind.DELETED and seen.object.status.phase:
                    return seen.object
        return None


def device_id(gpus: tuple[GPU, ...], text: str) -> str:
    """Return the device id of a GPU by index, PCI address, UUID or the beginning of one; others stand for themselves.

    Raises: Invalid: it is the beginning of several.
    """
    if text.isdecimal():
        found = [gpu for gpu in gpus if str(gpu.index) == (text.lstrip("0") or "0")]
    else:
        exact = [gpu for gpu in gpus if text in {gpu.uuid, gpu.pci_bus_id}]
        found = exact or [gpu for gpu in gpus if gpu.uuid.startswith(text)]
    if len(found) > 1:
        message = f'"{text}" are {len(found)} GPUs: {", ".join(gpu.uuid for gpu in found)}'
        raise errors.Invalid(message, reason="GPUAmbiguous", hint="write more of the UUID")
    return found[0].uuid if found else text


def _outcome(answered: DeviceChange) -> DeviceChanged:
    """Return what was done. Raises: what the kubelet says was in the way."""
    told, wanted = answered.status, answered.spec
    if told.problem is not None:
        raise devicechange.error_of(told.problem)
    done = told.outcome or devicechange.Outcome()
    return DeviceChanged(
        container=wanted.container,
        resource=wanted.resource,
        device=wanted.device,
        rules=done.rules,
        nodes=tuple(NodeChange(path=one.path, done=one.done) for one in done.nodes),
        opens=dict(done.opens),
        ended=tuple(EndedProcess(pid=one.pid, name=one.name) for one in done.ended),
        unread=done.unread,
    )
