"""Finds the namespaces that an ephemeral container joins: those of a pod that runs.

Network and host name are the pod's, shared memory and user namespace too; processes only those of its target. Which
users a namespace has is read from the kernel: settings may have changed since its container was made, and a container
whose ids were guessed would be root of the machine beside a tenant's network.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors
from fairlead.engine import port
from fairlead.engine.port import ContainerPhase, ContainerSpec, ContainerState
from fairlead.node.kubelet import sandbox
from fairlead.plan.pod.running import ephemeral
from fairlead.wire.kubernetes import core, names

_MOST_PID: Final = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Engine names of the containers whose namespaces are joined."""

    network_of: str
    ipc_of: str
    processes_of: str | None
    """None: a namespace of its own."""
    pid: int | None
    """Host pid of the first of them; None: the engine says none."""

    def applied(self, wanted: ContainerSpec) -> ContainerSpec:
        """Return a container in these namespaces."""
        processes = wanted.processes_of or self.processes_of
        return dataclasses.replace(wanted, ipc_of=self.ipc_of, processes_of=processes, shm_bytes=None)


def find(pod: core.Pod, item: core.EphemeralContainer, states: Sequence[ContainerState]) -> Joined:
    """Return what an ephemeral container joins.

    Args:    states: all that the engine has of the pod.
    Raises:  Unavailable (`PodNotRunning`, `TargetNotRunning`): it is tried again; (`DebugNotServed`): never.
    """
    if refused := ephemeral.unserved(pod):
        raise refused
    running = {one.labels.get(names.CONTAINER_NAME, ""): one for one in states if one.phase is ContainerPhase.RUNNING}
    mains = [running[one.name] for one in (*pod.spec.containers, *pod.spec.init_containers) if one.name in running]
    target = running.get(item.target_container_name)
    if item.target_container_name and target is None:
        message = f'container "{item.target_container_name}" does not run, whose processes are to be seen'
        raise errors.Unavailable(message, reason="TargetNotRunning", hint="it is joined once it runs")
    if not mains:
        message = f'no container of "{pod.metadata.name}" runs'
        raise errors.Unavailable(message, reason="PodNotRunning", hint="it is joined once one runs")
    owner = running.get(sandbox.CONTAINER) or mains[0]
    return Joined(
        network_of=owner.name,
        ipc_of=(target or mains[0]).name,
        processes_of=None if target is None else target.name,
        pid=owner.pid,
    )


def first_user_id(pid: int | None, proc: Path = Path("/proc")) -> int | None:
    """Return the first id of a process's user namespace; None: the host's own ids.

    Raises: Unavailable (`PodNotRunning`): it has ended meanwhile.
    """
    if pid is None:
        return None
    try:
        words = (proc / str(pid) / "uid_map").read_text().split()
    except FileNotFoundError as error:
        if pid > _MOST_PID:  # of the fake engine, which has no processes
            return None
        message = "the process whose namespaces are joined has ended"
        raise errors.Unavailable(message, reason="PodNotRunning", hint="it is tried again") from error
    inside, first, count = (int(word) for word in words[:3])
    return first if (inside, count) == (0, port.USER_IDS) else None


def beside(pod: core.Pod, item: core.EphemeralContainer) -> tuple[core.Pod, core.Container]:
    """Return pod and container as an ephemeral one's spec is built from them.

    It has the limits of the container it looks into, once more, so that nobody passes a limit by looking; users and
    groups by name are those of the pod's own images, which this one may not know.
    """
    options = pod.spec.machine
    if options is not None:
        options = msgspec.structs.replace(options, user="", groups=())
    named = item.target_container_name or pod.spec.containers[0].name
    every = (*pod.spec.containers, *pod.spec.init_containers)
    limits = next(one.resources.limits for one in every if one.name == named)
    kept = {name: limits[name] for name in ("cpu", "memory") if name in limits}
    limited = msgspec.structs.replace(item, resources=core.ResourceRequirements(limits=kept))
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, machine=options)), limited
