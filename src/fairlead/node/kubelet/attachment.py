"""Attaches devices to running containers and detaches them as `DeviceChange` objects ask, which no real kubelet does.

The device plugin API knows no such thing, so this is the embedded kubelet's alone. Only its own device manager decides
what is free, and its checkpoint is written before the kernel allows a device that comes, and after it has denied
one that goes: a kill between the two leaves the device held, never in two hands, and the request, still without an
answer, is carried out again. A device given this way stays the container's through restarts; one that was taken does
not come back with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec

from fairlead import errors, telemetry
from fairlead.engine.port import ContainerPhase, ContainerState
from fairlead.model.container.step import TraceStep
from fairlead.node.isolation import attach
from fairlead.node.kubelet import spec
from fairlead.node.kubelet.devices.checkpoint import Grant
from fairlead.node.kubelet.devices.devicemanager import DeviceManager
from fairlead.node.kubelet.runtime import grants_of
from fairlead.node.trace import steps
from fairlead.plan.audit import GrantedNode
from fairlead.plan.pod import podstate
from fairlead.store import reflector, retry
from fairlead.store.port import EVERYTHING, Change, ChangeKind, Store
from fairlead.wire.kubernetes import core, devicechange, names
from fairlead.wire.kubernetes.devicechange import DeviceChange, DeviceChangeSpec, DeviceChangeStatus
from fairlead_cdi import directory

Outcome = attach.Outcome


class StepRecorder(Protocol):
    """Records a step of a pod."""

    async def __call__(self, pod: core.Pod, step: TraceStep, /) -> None:
        """Record it."""


class DeviceChanger(Protocol):
    """Changes the devices of a running container: `node.isolation.attach`, or a test's."""

    async def attach(self, pid: int, nodes: Sequence[GrantedNode], *, container: str = "") -> Outcome:
        """See `node.isolation.attach.attach`."""
        ...

    async def detach(self, pid: int, nodes: Sequence[GrantedNode], *, is_forced: bool, container: str = "") -> Outcome:
        """See `node.isolation.attach.detach`."""
        ...


class Attachments:
    """Carries out the requests of one node's pods; called by the pod's own worker, one at a time."""

    def __init__(
        self,
        store: Store,
        devices: DeviceManager,
        *,
        cdi_folder: Path,
        record: StepRecorder,
        changer: DeviceChanger = attach,
    ) -> None:
        self._store = store
        self._changer = changer
        self._devices = devices
        self._folders = tuple(dict.fromkeys((*directory.DEFAULT_DIRECTORIES, str(cdi_folder))))
        self._record = record
        # By uid of the pod: the request that waits, and the last one carried out, with its answer.
        self._asked: dict[str, DeviceChange] = {}
        self._answered: dict[str, DeviceChange] = {}

    async def follow(self, wake: Callable[[str], None]) -> None:
        """Learn of requests until cancelled; `wake` gets the uid of each pod that has one."""

        def listed(items: tuple[DeviceChange, ...]) -> None:
            self._asked.clear()
            for item in items:
                self._learn(item, wake)

        def changed(change: Change[DeviceChange]) -> None:
            if change.kind is ChangeKind.DELETED:
                self._drop(change.object)
            else:
                self._learn(change.object, wake)

        await reflector.follow(self._store, DeviceChange, EVERYTHING, listed=listed, changed=changed)

    def _learn(self, item: DeviceChange, wake: Callable[[str], None]) -> None:
        if item.status.phase:
            self._drop(item)
        else:
            self._asked[item.spec.pod_uid] = item
            wake(item.spec.pod_uid)

    def _drop(self, item: DeviceChange) -> None:
        waiting = self._asked.get(item.spec.pod_uid)
        if waiting is not None and waiting.metadata.uid == item.metadata.uid:
            del self._asked[item.spec.pod_uid]

    def forget(self, uid: str) -> None:
        """Forget a pod that is gone."""
        self._asked.pop(uid, None)
        self._answered.pop(uid, None)

    def wanted(self, uid: str) -> frozenset[str]:
        """Return the resources of which a pod's request wants a device, or wants to be rid of one."""
        return frozenset({self._asked[uid].spec.resource} if uid in self._asked else ())

    async def carry_out(
        self,
        pod: core.Pod,
        states: Sequence[ContainerState],
        *,
        wait_for: Callable[[Set[str]], float | None] = lambda _: None,
    ) -> float | None:
        """Carry out the pod's request, if it has one, and answer it.

        What goes wrong becomes the answer; only a store that is away is raised (`Unavailable`). Called again, it gives
        the answer again without acting again.
        Args:    wait_for: says of some resources how long to wait for a plugin that may be coming; None: not at all.
        Returns: after how many seconds to call again, because it was waited; else None.
        """
        asked = self._asked.get(pod.metadata.uid)
        if asked is None:
            return None
        wait_s = wait_for(self.wanted(pod.metadata.uid))
        if wait_s is not None:
            return wait_s
        answered = self._answered.get(pod.metadata.uid)
        if answered is None or answered.metadata.uid != asked.metadata.uid:
            answered = msgspec.structs.replace(asked, status=await self._act(pod, asked.spec, states))
            self._answered[pod.metadata.uid] = answered
        telemetry.crash_point("kubelet.before-settle")
        await self._answer(answered)
        self._drop(asked)
        return None

    async def _act(
        self, pod: core.Pod, change: DeviceChangeSpec, states: Sequence[ContainerState]
    ) -> DeviceChangeStatus:
        """Change the devices and keep the step that says so; returns what it came to."""
        started = time.monotonic()
        try:
            done = _told(await self._change(pod, change, states))
        except errors.FairleadError as error:
            await self._record(pod, steps.device_change_refused(change, error, at=time.time()))
            return DeviceChangeStatus(phase="Refused", problem=devicechange.problem_of(error))
        await self._record(
            pod, steps.device_changed(change, done, at=time.time(), duration_s=time.monotonic() - started)
        )
        return DeviceChangeStatus(phase="Done", outcome=done)

    async def _answer(self, answered: DeviceChange) -> None:
        about = answered.metadata

        def told(fresh: DeviceChange) -> DeviceChange | None:
            is_same = fresh.metadata.uid == about.uid
            return msgspec.structs.replace(fresh, status=answered.status) if is_same else None

        # No client waits for the answer to one that was withdrawn meanwhile; the step says what was done.
        with contextlib.suppress(errors.NotFound):
            await retry.change_status(self._store, DeviceChange, about.name, told, namespace=about.namespace)

    async def _change(self, pod: core.Pod, change: DeviceChangeSpec, states: Sequence[ContainerState]) -> Outcome:
        state = _running(change.container, states)
        if spec.is_gvisor(pod):
            message = f"{pod.metadata.name} runs on gVisor, whose devices are those that it was made with"
            raise errors.Conflict(message, reason="SandboxFixed", hint="run it again with the devices that it needs")
        if change.action == "attach":
            return await self._attach(pod, change, state)
        return await self._detach(pod, change, state)

    async def _attach(self, pod: core.Pod, change: DeviceChangeSpec, state: _Running) -> Outcome:
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
            return await self._changer.attach(state.pid, nodes, container=state.id)
        except errors.FairleadError:
            if not was_held:
                await self._devices.take(*who, change.device)
            raise

    async def _detach(self, pod: core.Pod, change: DeviceChangeSpec, state: _Running) -> Outcome:
        # Every answer is needed: a device that the checkpoint cannot name would stay allowed in the kernel.
        held = await self._devices.answered(pod.metadata.uid, change.container)
        if not any(grant.resource == change.resource and change.device in grant.device_ids for grant in held):
            message = f'device "{change.device}" of {change.resource} is not held by {pod.metadata.name}'
            raise errors.NotFound(message, reason="DeviceNotHeld", hint="`fairlead gpus` says who holds what")
        rest = await self._devices.answer_without(pod.metadata.uid, change.container, change.resource, change.device)
        nodes = await self._difference(held, [grant for grant in held if grant.resource != change.resource] + [rest])
        outcome = await self._changer.detach(state.pid, nodes, is_forced=change.force, container=state.id)
        telemetry.crash_point("kubelet.before-take")
        await self._devices.take(pod.metadata.uid, change.container, change.resource, change.device)
        return outcome

    def _held(self, pod: core.Pod, container: str) -> tuple[Grant, ...]:
        return tuple(grant for grant in self._devices.held(pod.metadata.uid) if grant.container == container)

    async def _difference(self, more: Sequence[Grant], less: Sequence[Grant]) -> tuple[GrantedNode, ...]:
        """Return the device nodes of `more` that `less` does not have."""

        def read() -> tuple[GrantedNode, ...]:
            registry = attach.scan(self._folders)
            kept = {node.path for node in _nodes(less, registry)}
            return tuple(node for node in _nodes(more, registry) if node.path not in kept)

        return await asyncio.to_thread(read)


def _told(outcome: Outcome) -> devicechange.Outcome:
    return devicechange.Outcome(
        rules=outcome.rules,
        nodes=tuple(devicechange.ChangedNode(path=path, done=what) for path, what in outcome.nodes),
        opens=outcome.opens,
        ended=tuple(devicechange.EndedProcess(pid=one.pid, name=one.name) for one in outcome.ended),
        unread=outcome.unread,
    )


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
    by_name = attach.nodes_of(spec.allocated_names(tuple(grants), registry.devices), registry)
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
