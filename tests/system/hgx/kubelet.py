"""Plays a kubelet in the node: Fairlead's own device manager over the real sockets, commanded from outside.

`start` begins it in the background; the other functions ask it over a socket of its own. It keeps a checkpoint as
kubelets do, so that it may be killed and started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
import traceback
from pathlib import Path
from typing import Any

STATE = Path("/state/kubelet")
FOLDER = Path("/var/lib/kubelet/device-plugins")
PODS = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
CONTROL = Path("/run/kubelet.sock")
LOG = Path("/run/started/kubelet")


def start() -> int:
    """Begin to serve in the background; returns the pid."""
    CONTROL.unlink(missing_ok=True)
    pid = os.fork()
    if pid:
        while not CONTROL.exists():
            time.sleep(0.05)
        return pid
    os.setsid()
    LOG.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.closerange(3, 1024)
    try:
        asyncio.run(_serve())
    except BaseException:  # noqa: BLE001 - the edge of the process: what ended it stands in its log
        traceback.print_exc()
    os._exit(1)


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
    with socket.socket(socket.AF_UNIX) as peer, peer.makefile("rw") as lines:
        peer.settimeout(60)
        peer.connect(str(CONTROL))
        lines.write(json.dumps([what, *arguments]) + "\n")
        lines.flush()
        answer = json.loads(lines.readline())
    if "refused" in answer:
        raise RuntimeError(answer["refused"])
    return answer["value"]


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

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            what = json.loads(await reader.readline())
            try:
                told = {"value": await do(*what)}
            except Exception as error:  # noqa: BLE001 - the edge of a call: told to the test, whatever it was
                told = {"refused": f"{type(error).__name__}: {error}"}
            writer.write(json.dumps(told).encode() + b"\n")
            await writer.drain()

    async with asyncio.TaskGroup() as tasks, contextlib.AsyncExitStack() as served:
        tasks.create_task(devices.run())
        await served.enter_async_context(registration.serve_registration(devices, FOLDER))
        await served.enter_async_context(podresources.serve_pod_resources(devices, lambda: pods, PODS))
        await asyncio.start_unix_server(answer, CONTROL)
        await asyncio.Event().wait()
