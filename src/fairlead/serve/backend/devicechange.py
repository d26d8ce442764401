"""Has the embedded kubelet give a running container a GPU, or take one from it.

Nothing is done here: the request becomes an annotation of the pod, its node's kubelet decides and acts (only its
checkpoint says what is free), and its answer is the step that names the request. A kubelet that does not know such
requests (a real one) leaves it lying; then it is taken back, and the caller is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead import errors
from fairlead.model.gpu import GPU, Inventory
from fairlead.model.step import TraceStep
from fairlead.serve.backend import pods
from fairlead.serve.backend.deviceview import DeviceChanged
from fairlead.serve.closing import closing
from fairlead.store import tracerecorder
from fairlead.store.port import ChangeKind, Store
from fairlead.wire.kubernetes import core, devicechange, names

ANSWER_S: Final = 45.0
"""Longer than a kubelet takes to ask a plugin and to end whoever has the device open."""
_TRIES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDeviceChanges:
    """A `port.DeviceChanges` over the pod's annotations."""

    store: Store
    scan: Callable[[], Inventory]
    """The latest scan."""

    def device_id(self, text: str) -> str:
        """See `port.DeviceChanges.device_id`."""
        return device_id(self.scan().gpus, text)

    async def carry_out(self, pod: core.Pod, change: devicechange.Change) -> DeviceChanged:
        """See `port.DeviceChanges.carry_out`."""
        await self._request(pod, change)
        try:
            await self._carried_out(pod, change)
        except TimeoutError as error:
            await self._take_back(pod, change)
            message = f"the kubelet of {pod.spec.node_name} did not act on the device change within {ANSWER_S:g} s"
            hint = "only Fairlead's own kubelet can; `fairlead attach --pid` works on the node itself"
            raise errors.Unavailable(message, reason="KubeletCannot", hint=hint) from error
        return _outcome(await self._answer(pod, change))

    async def _request(self, pod: core.Pod, change: devicechange.Change) -> None:
        """Write the request. Raises: Conflict (`ChangePending`): another one waits."""

        def requested(notes: dict[str, str]) -> dict[str, str]:
            if names.DEVICE_CHANGE in notes:
                message = f'a change of the devices of "{pod.metadata.name}" is under way already'
                raise errors.Conflict(message, reason="ChangePending", hint="ask again when it is done")
            return {**notes, names.DEVICE_CHANGE: devicechange.emit(change)}

        await self._annotate(pod, requested)

    async def _take_back(self, pod: core.Pod, change: devicechange.Change) -> None:
        text = devicechange.emit(change)
        with contextlib.suppress(errors.NotFound):
            await self._annotate(
                pod, lambda notes: {k: v for k, v in notes.items() if (k, v) != (names.DEVICE_CHANGE, text)}
            )

    async def _annotate(self, pod: core.Pod, edit: Callable[[dict[str, str]], dict[str, str]]) -> None:
        for left in reversed(range(_TRIES)):
            fresh = await pods.find_pod(self.store, pod.metadata.name, pod.metadata.namespace)
            if fresh.metadata.uid != pod.metadata.uid:
                raise pods.not_found(pod.metadata.name, pod.metadata.namespace)
            about = msgspec.structs.replace(fresh.metadata, annotations=edit(dict(fresh.metadata.annotations)))
            try:
                await self.store.update(msgspec.structs.replace(fresh, metadata=about))
            except errors.Conflict:
                if not left:
                    raise
            else:
                return

    async def _carried_out(self, pod: core.Pod, change: devicechange.Change) -> None:
        """Return once the request is gone from the pod, or the pod is. Raises: TimeoutError."""
        async with asyncio.timeout(ANSWER_S), closing(pods.follow_pod(self.store, pod)) as changes:
            async for seen in changes:
                note = seen.object.metadata.annotations.get(names.DEVICE_CHANGE)
                if seen.kind is ChangeKind.DELETED or note is None or devicechange.parse(note).id != change.id:
                    return

    async def _answer(self, pod: core.Pod, change: devicechange.Change) -> TraceStep:
        for step in reversed(await tracerecorder.list_steps(self.store, tracerecorder.reference(pod))):
            if step.facts.get("change") == change.id:
                return step
        message = f'container "{pod.metadata.name}" went away before its devices were changed'
        raise errors.Conflict(message, reason="ContainerGone", hint=f"`fairlead trace {pod.metadata.name}`")


def device_id(gpus: tuple[GPU, ...], text: str) -> str:
    """Return the device id of a GPU by index, PCI address, UUID or the beginning of one; others stand for themselves.

    Raises: Invalid: it is the beginning of several.
    """
    if text.isdecimal():
        found = [gpu for gpu in gpus if gpu.index == int(text)]
    else:
        exact = [gpu for gpu in gpus if text in {gpu.uuid, gpu.pci_bus_id}]
        found = exact or [gpu for gpu in gpus if gpu.uuid.startswith(text)]
    if len(found) > 1:
        message = f'"{text}" are {len(found)} GPUs: {", ".join(gpu.uuid for gpu in found)}'
        raise errors.Invalid(message, reason="GPUAmbiguous", hint="write more of the UUID")
    return found[0].uuid if found else text


def _outcome(step: TraceStep) -> DeviceChanged:
    """Return what a step says was done. Raises: what it says was in the way."""
    problem = step.facts.get("problem")
    if problem is not None:
        raise devicechange.error_of(msgspec.convert(problem, devicechange.Problem))
    return msgspec.convert(dict(step.facts), DeviceChanged)
