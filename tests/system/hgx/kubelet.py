"""Plays a kubelet in the node: Fairlead's own device manager over the real sockets, commanded from outside.

`start` begins it in the background; the other functions ask it over a socket of its own. It keeps a checkpoint as
kubelets do, so that it may be killed and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import commanded  # type: ignore[import-not-found]  # packed beside this file

STATE = Path("/state/kubelet")
FOLDER = Path("/var/lib/kubelet/device-plugins")
PODS = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
NAME = "kubelet"


def start() -> int:
    """Begin to serve in the background; returns the pid."""
    return int(commanded.start(NAME, _serve))


def capacity() -> dict[str, list[int]]:
    """Return (capacity, allocatable) of each resource."""
    return dict(_ask("capacity"))


def admit(pod: str, resource: str) -> list[str]:
    """Admit a pod with one device of a resource; returns the ids and CDI names, or raises with the refusal."""
    return list(_ask("admit", pod, resource))


def end(pod: str) -> None:
    """Forget a pod, as kubelets do when it has ended or was deleted by force."""
    _ask("end", pod)


def until(resource: str, allocatable: int, limit_s: float) -> float:
    """Return after how many seconds so many devices of a resource can be given away; -1: never within the limit."""
    begun = time.monotonic()
    while time.monotonic() < begun + limit_s:
        if capacity().get(resource, [0, -1])[1] == allocatable:
            return time.monotonic() - begun
        time.sleep(0.01)
    return -1


def until_after(path: str, text: str, resource: str, allocatable: int, limit_s: float) -> float:
    """Write to a file; returns how long it took from then on until so many devices can be given away."""
    begun = time.monotonic()
    Path(path).write_text(text)
    return time.monotonic() - begun if until(resource, allocatable, limit_s) >= 0 else -1


def _ask(what: str, *arguments: str) -> Any:
    return commanded.ask(NAME, what, *arguments)


async def _serve() -> None:
    from fairlead.node.kubelet.devices import checkpoint, devicemanager, podresources, registration
    from fairlead.wire.kubernetes import core, meta
    from fairlead.wire.proto import deviceplugin_pb2 as pb

    pods: list[core.Pod] = []
    STATE.mkdir(parents=True, exist_ok=True)
    devices = devicemanager.DeviceManager(checkpoint.Checkpoint(STATE), grace_s=300, changed=lambda: None)
    devices.load()

    async def keep(_: str, __: devicemanager.Choice) -> None:
        return

    async def do(what: str, *arguments: str) -> Any:
        if what == "capacity":
            return devices.capacity()
        if what == "end":
            pods[:] = [pod for pod in pods if pod.metadata.name != arguments[0]]
            return await devices.free(arguments[0])
        name, resource = arguments
        needs = core.ResourceRequirements(limits={resource: "1"})
        pod = core.Pod(
            metadata=meta.ObjectMeta(name=name, namespace="team", uid=name),
            spec=core.PodSpec(containers=(core.Container(name="main", resources=needs),)),
            status=core.PodStatus(phase="Running"),
        )
        grants = await devices.allocate(pod, keep)
        pods.append(pod)
        answers = [pb.ContainerAllocateResponse.FromString(grant.response) for grant in grants]
        return [*(item for one in grants for item in one.device_ids), *(d.name for a in answers for d in a.cdi_devices)]

    async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as served:
        tasks.create_task(devices.run())
        await served.enter_async_context(registration.serve_registration(devices, FOLDER))
        await served.enter_async_context(podresources.serve_pod_resources(devices, lambda: pods, PODS))
        await served.enter_async_context(commanded.answering(NAME, do))
        await asyncio.Event().wait()
