"""Attaches devices to running containers and detaches them on request, which no real kubelet does.

The device plugin API knows no such thing, so this is the embedded kubelet's alone. Only its own device manager decides
what is free, and its books are written before the kernel is told of a device that comes, and after it has let go of one
that goes: a kill between the two leaves the device held, never in two hands, and the wish, still there, is carried out
again. A device given this way stays the container's through restarts; one that was taken does not come back with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from fairlead import errors, telemetry
from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.model.step import TraceStep
from fairlead.node.isolation import attach
from fairlead.node.kubelet import spec
from fairlead.node.kubelet.checkpoint import Grant
from fairlead.node.kubelet.devicemanager import DeviceManager
from fairlead.node.kubelet.runtime import grants_of
from fairlead.node.trace import steps
from fairlead.plan.audit import GrantedNode
from fairlead.plan.pod import podstate
from fairlead.store import retry
from fairlead.store.port import Store
from fairlead.wire.kubelet import deviceplugin
from fairlead.wire.kubernetes import core, devicechange, names
from fairlead_cdi import directory

Outcome = attach.Outcome


class Keep(Protocol):
    """Keeps a step of a pod."""

    async def __call__(self, pod: core.Pod, step: TraceStep, /) -> None:
        """Keep it."""


class Hands(Protocol):
    """What changes a running container: `node.attach`, or a test's."""

    async def attach(self, pid: int, nodes: Sequence[GrantedNode], *, container: str = "") -> Outcome:
        """See `node.attach.attach`."""
        ...

    async def detach(self, pid: int, nodes: Sequence[GrantedNode], *, is_forced: bool, container: str = "") -> Outcome:
        """See `node.attach.detach`."""
        ...


class Attachments:
    """Carries out the wishes of one node's pods; called by the pod's own worker, one at a time."""

    def __init__(
        self, store: Store, devices: DeviceManager, *, cdi_folder: Path, keep: Keep, hands: Hands = attach
    ) -> None:
        self._store = store
        self._hands = hands
        self._devices = devices
        self._folders = tuple(dict.fromkeys((*directory.DEFAULT_DIRECTORIES, str(cdi_folder))))
        self._keep = keep
        # The last wish carried out, by pod: the same one may be seen once more before its removal is.
        self._done: dict[str, str] = {}

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._done.pop(uid, None)

    async def carry_out(self, pod: core.Pod, states: Sequence[ContainerState]) -> core.Pod:
        """Carry out the pod's wish, if it has one; returns the pod as it then is.

        What goes wrong becomes the step that answers the wish; only a store that is away is raised (`Unavailable`).
        """
        text = pod.metadata.annotations.get(names.DEVICE_CHANGE)
        if text is None:
            return pod
        try:
            change = devicechange.parse(text)
        except errors.ProtocolError as error:
            telemetry.log.warning("device change not readable", pod=pod.metadata.name, error=error.message)
            return await self._settle(pod)
        if self._done.get(pod.metadata.uid) == change.id:
            return await self._settle(pod)
        started = time.monotonic()
        try:
            outcome = await self._change(pod, change, states)
            step = steps.device_changed(change, outcome, at=time.time(), duration_s=time.monotonic() - started)
        except errors.FairleadError as error:
            step = steps.device_change_refused(change, error, at=time.time())
        await self._keep(pod, step)
        self._done[pod.metadata.uid] = change.id
        telemetry.crash_point("kubelet.before-settle")
        return await self._settle(pod)

    async def _change(self, pod: core.Pod, change: devicechange.Change, states: Sequence[ContainerState]) -> Outcome:
        state = _running(change.container, states)
        if change.action == "attach":
            return await self._attach(pod, change, state)
        return await self._detach(pod, change, state)

    async def _attach(self, pod: core.Pod, change: devicechange.Change, state: _Running) -> Outcome:
        who = (pod.metadata.uid, change.container, change.resource)
        before = await self._devices.answered(pod.metadata.uid, change.container)
        was_held = any(change.device in grant.device_ids for grant in before)
        await self._devices.give(*who, change.device)
        telemetry.crash_point("kubelet.after-give")
        try:
            nodes = await self._difference(self._held(pod, change.container), () if was_held else before)
            if not nodes:
                message = f"the plugin of {change.resource} answers with nothing that a running container can be given"
                hint = "mounts and variables are fixed when a container is made"
                raise errors.Conflict(message, reason="NothingToAttach", hint=hint)
            return await self._hands.attach(state.pid, nodes, container=state.id)
        except errors.FairleadError:
            if not was_held:
                await self._devices.take(*who, change.device)
            raise

    async def _detach(self, pod: core.Pod, change: devicechange.Change, state: _Running) -> Outcome:
        # Every answer is needed: what the books cannot name, the kernel would not be told to take.
        held = await self._devices.answered(pod.metadata.uid, change.container)
        if not any(grant.resource == change.resource and change.device in grant.device_ids for grant in held):
            message = f'device "{change.device}" of {change.resource} is not held by {pod.metadata.name}'
            raise errors.NotFound(message, reason="DeviceNotHeld", hint="`fairlead gpus` says who holds what")
        rest = await self._devices.answer_without(pod.metadata.uid, change.container, change.resource, change.device)
        nodes = await self._difference(held, [grant for grant in held if grant.resource != change.resource] + [rest])
        outcome = await self._hands.detach(state.pid, nodes, is_forced=change.force, container=state.id)
        telemetry.crash_point("kubelet.before-take")
        await self._devices.take(pod.metadata.uid, change.container, change.resource, change.device)
        return outcome

    def _held(self, pod: core.Pod, container: str) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._devices.held(pod.metadata.uid) if grant.container == container)

    async def _difference(self, more: Sequence[Grant], less: Sequence[Grant]) -> tuple[GrantedNode, ...]:
        """Return the device nodes that the one has and the other has not."""

        def read() -> tuple[GrantedNode, ...]:
            registry = attach.scan(self._folders)
            kept = {node.path for node in _nodes(less, registry)}
            return tuple(node for node in _nodes(more, registry) if node.path not in kept)

        return await asyncio.to_thread(read)

    async def _settle(self, pod: core.Pod) -> core.Pod:
        """Remove the wish; what is held now is said in the pod's status, by the worker's next report."""

        def settled(fresh: core.Pod) -> core.Pod | None:
            notes = {key: value for key, value in fresh.metadata.annotations.items() if key != names.DEVICE_CHANGE}
            about = msgspec.structs.replace(fresh.metadata, annotations=notes)
            is_same = fresh.metadata.uid == pod.metadata.uid
            return msgspec.structs.replace(fresh, metadata=about) if is_same else None

        about = pod.metadata
        try:
            written = await retry.change(self._store, core.Pod, about.name, settled, namespace=about.namespace)
        except errors.NotFound:
            return pod
        return written if written.metadata.uid == about.uid else pod


@dataclass(frozen=True, slots=True)
class _Running:
    """A container's first process, and its engine's id: the process must be in a cgroup of that name."""

    pid: int
    id: str


def _running(container: str, states: Sequence[ContainerState]) -> _Running:
    """Return the first process of the running container. Raises: Conflict (`ContainerNotRunning`)."""
    for state in states:
        if state.labels.get(names.CONTAINER_NAME) == container and state.phase is ContainerPhase.RUNNING and state.pid:
            return _Running(state.pid, state.id)
    message = f'container "{container}" is not running'
    raise errors.Conflict(message, reason="ContainerNotRunning", hint="devices are changed in running containers only")


def _nodes(grants: Sequence[Grant], registry: directory.Registry) -> tuple[GrantedNode, ...]:
    answer = spec.merged_answer(tuple(grants))
    by_name = attach.nodes_of(deviceplugin.cdi_names(answer), registry)
    by_path = [attach.host_node(one.host_path, one.container_path, one.permissions) for one in answer.devices]
    return (*by_name, *by_path)


def grants_now(state: ContainerState, pods: Mapping[str, core.Pod]) -> tuple[Grant, ...]:
    """Return what a container holds: what its pod's status says, or its own labels where that says nothing.

    Devices are changed after the start of a container, whose labels stay. Of one that gave all of them back the labels
    count again: too much is held rather than too little.
    Args: pods: by uid.
    """
    labels = state.labels
    uid, name = labels.get(names.POD_UID, ""), labels.get(names.CONTAINER_NAME, "")
    found = pods.get(uid, core.Pod()).status
    statuses = (*found.container_statuses, *found.init_container_statuses)
    now = next((podstate.container_devices(one) for one in statuses if one.name == name), {})
    if not now:
        return grants_of(state)
    return tuple(
        Grant(pod_uid=uid, container=name, resource=resource, device_ids=ids, response=b"")
        for resource, ids in sorted(now.items())
    )
