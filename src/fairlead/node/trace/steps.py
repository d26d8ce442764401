"""Builds the node's trace steps as values: the same facts whichever kubelet took the step.

The embedded kubelet records what it does itself (`node.kubelet.runtime`); beside a foreign one
`node.trace.foreignkubelet` records what it sees it do. Both make their steps here, so that the two traces of one
manifest can be laid side by side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead import errors
from fairlead.engine.port import ContainerSpec, ContainerState
from fairlead.kernel import readback
from fairlead.model.container.step import TraceStep
from fairlead.node.isolation import edits
from fairlead.plan.sandbox import machinestart
from fairlead.plan.sandbox.machinestart import MachineTimes
from fairlead.wire.kubernetes import devicechange
from fairlead.wire.kubernetes.devicechange import DeviceChangeSpec
from fairlead.wire.proto import deviceplugin_pb2 as pb


def chosen(
    container: str,
    resource: str,
    ids: Sequence[str],
    *,
    asked: int,
    available: Sequence[str] | None,
    preferred: Sequence[str],
    at: float,
    duration_s: float | None,
) -> TraceStep:
    """Return the kubelet's choice; `available` None: it is not known what was free."""
    free = "" if available is None else f" of {len(available)} free"
    facts: dict[str, object] = {"container": container, "resource": resource, "asked": asked}
    facts |= {} if available is None else {"available": list(available)}
    return TraceStep(
        layer="kubelet",
        reason="DevicesChosen",
        message=f"{len(ids)}{free} {resource} for {container}",
        at=at,
        duration_s=duration_s,
        facts={**facts, "preferred": list(preferred), "chosen": list(ids)},
    )


def allocated(
    container: str,
    resource: str,
    answer: pb.ContainerAllocateResponse,
    names: Sequence[str],
    *,
    at: float,
    duration_s: float | None,
) -> TraceStep:
    """Return the plugin's answer; `names`: the CDI devices in it, by field and by annotation."""
    return TraceStep(
        layer="deviceplugin",
        reason="DevicesAllocated",
        message=f"Allocate answered with {len(names)} CDI names for {container}",
        at=at,
        duration_s=duration_s,
        facts={
            "container": container,
            "resource": resource,
            "answer": {
                "cdi_devices": list(names),
                "envs": dict(answer.envs),
                "mounts": [item.container_path for item in answer.mounts],
                "devices": [item.container_path for item in answer.devices],
                "annotations": dict(answer.annotations),
            },
        },
    )


def resolved(
    container: str, names: Sequence[str], found: edits.Resolved, *, at: float, duration_s: float | None
) -> TraceStep:
    """Return what the CDI specs say about a container's names."""
    return TraceStep(
        layer="cdi",
        reason="EditsResolved",
        message=f"{len(found.device_nodes)} device nodes, {len(found.mounts)} mounts from {len(found.specs)} spec",
        at=at,
        duration_s=duration_s,
        facts={
            "container": container,
            "names": list(names),
            "specs": list(found.specs),
            "device_nodes": list(found.device_nodes),
            "mounts": list(found.mounts),
            "env": list(found.env),
        },
    )


def created(
    container: str, attempt: int, wanted: ContainerSpec, state: ContainerState, *, at: float, duration_s: float
) -> TraceStep:
    """Return that the engine made a container, whose process it holds."""
    return TraceStep(
        layer="engine",
        reason="ContainerCreated",
        message=f"{wanted.name} created, its process held at pid {state.pid}",
        at=at,
        duration_s=duration_s,
        facts={
            "container": container,
            "attempt": attempt,
            "name": wanted.name,
            "pid": state.pid,
            "image": wanted.image,
            "network_of": wanted.network_of,
            "first_user_id": wanted.first_user_id,
            "cpu_limit": wanted.cpu_limit,
            "memory_limit_bytes": wanted.memory_limit_bytes,
            **({"runtime": wanted.runtime} if wanted.runtime else {}),
        },
    )


def pulled(container: str, image: str, *, at: float, duration_s: float) -> TraceStep:
    """Return that a container's image was fetched."""
    return TraceStep(
        layer="engine",
        reason="ImagePulled",
        message=f"image of {container} fetched",
        at=at,
        duration_s=duration_s,
        facts={"container": container, "image": image},
    )


def host_user_ids(container: str, problem: str, *, at: float) -> TraceStep:
    """Return that a tenant's container has no user namespace."""
    return TraceStep(
        layer="engine",
        reason="HostUserIDs",
        message=f"{container} has the host's user ids: {problem}",
        at=at,
        facts={"container": container, "problem": problem},
        is_warning=True,
    )


def isolation_read(
    container: str,
    pid: int,
    found: readback.Isolation,
    *,
    granted: Sequence[str],
    at: float,
    duration_s: float | None,
) -> TraceStep:
    """Return what was read back of one container; `granted`: paths of the device nodes it was given."""
    return TraceStep(
        layer="kernel",
        reason="IsolationRead",
        message="device rules, device nodes and open() read back from the kernel",
        at=at,
        duration_s=duration_s,
        facts={
            "container": container,
            "pid": pid,
            "rules": list(found.rules),
            "nodes": list(found.nodes),
            "opens": dict(found.opens),
            "granted": list(granted),
            "unread": list(found.unread),
        },
    )


def gofer_read(
    container: str, pid: int, found: readback.Isolation, *, granted: Sequence[str], at: float, duration_s: float | None
) -> TraceStep:
    """Return which device nodes gVisor's gofer hands on; `pid`: the gofer's."""
    return TraceStep(
        layer="kernel",
        reason="IsolationRead",
        message="device nodes that gVisor can open read back from its gofer",
        at=at,
        duration_s=duration_s,
        facts={
            "container": container,
            "pid": pid,
            "nodes": list(found.nodes),
            "opens": {},
            "granted": [path for path in granted if path in {node.path for node in found.nodes}],
            "unread": list(found.unread),
        },
    )


def network_read(
    container: str, tenancy: str, families: Sequence[str], *, at: float, duration_s: float | None
) -> TraceStep:
    """Return that a tenancy's packet filter was found in force before the process was let go."""
    return TraceStep(
        layer="kernel",
        reason="NetworkIsolated",
        message=f"packet filter of tenancy {tenancy} read back from the kernel",
        at=at,
        duration_s=duration_s,
        facts={"container": container, "tenancy": tenancy, "families": list(families)},
    )


def isolation_unread(container: str, why: str, *, at: float) -> TraceStep:
    """Return that nothing was read of a container, and why; not a word about what it was given."""
    return TraceStep(
        layer="kernel",
        reason="IsolationRead",
        message=f"isolation not read: {why}",
        at=at,
        facts={"container": container, "unread": [why]},
    )


def device_changed(
    change: DeviceChangeSpec, outcome: devicechange.Outcome, *, at: float, duration_s: float
) -> TraceStep:
    """Return that a running container was given a device, or that one was taken from it."""
    told = f", {len(outcome.ended)} processes that had it open were ended" if outcome.ended else ""
    way = "given to" if change.action == "attach" else "taken from"
    return TraceStep(
        layer="kernel",
        reason=devicechange.PAST[change.action],
        message=f"{change.device} {way} {change.container} while it runs{told}",
        at=at,
        duration_s=duration_s,
        facts={
            "container": change.container,
            "resource": change.resource,
            "device": change.device,
            "rules": list(outcome.rules),
            "nodes": [{"path": one.path, "done": one.done} for one in outcome.nodes],
            "opens": dict(outcome.opens),
            "ended": [{"pid": one.pid, "name": one.name} for one in outcome.ended],
            "unread": list(outcome.unread),
        },
    )


def device_change_refused(change: DeviceChangeSpec, error: errors.FairleadError, *, at: float) -> TraceStep:
    """Return that a request to change a running container's devices was not carried out, and why."""
    # No warning: the container is as well as it was, and `explain` must not give this as its reason.
    return TraceStep(
        layer="kernel",
        reason=devicechange.REFUSED[change.action],
        message=errors.sentence(error),
        at=at,
        facts={
            "container": change.container,
            "device": change.device,
            "cause": error.reason,
        },
    )


def started(
    container: str, name: str, *, at: float, duration_s: float | None, more: Mapping[str, object] | None = None
) -> TraceStep:
    """Return that a container's process was let go."""
    return TraceStep(
        layer="engine",
        reason="ContainerStarted",
        message=f"{name} started",
        at=at,
        duration_s=duration_s,
        facts={"container": container, "name": name, **(more or {})},
    )


def partition_activated(device: str, *, at: float, duration_s: float) -> TraceStep:
    """Return that the NVLink partition of a slot was activated, before which no machine is shown its GPUs."""
    return TraceStep(
        layer="deviceplugin",
        reason="PartitionActivated",
        message=f"NVLink partition of {device} activated",
        at=at,
        duration_s=duration_s,
        facts={"device": device},
    )


def machine_started(times: MachineTimes, *, at: float) -> TraceStep:
    """Return how a pod's virtual machine started. Args: at: when its container was let go, at the latest."""
    ready = times.agent_at if times.agent_at is not None else at
    return TraceStep(
        layer="engine",
        reason=machinestart.REASON,
        message="the virtual machine started" if times.agent_at is not None else "the virtual machine began to start",
        at=min(ready, at),
        duration_s=max(0.0, min(ready, at) - times.began_at),
        facts=times.facts(),
    )


def ended(container: str, exit_code: int | None, *, oom_killed: bool, ran_s: float | None, at: float) -> TraceStep:
    """Return how a container's process ended; `ran_s` None: too short to be measured."""
    oom = ", killed by the kernel for memory" if oom_killed else ""
    return TraceStep(
        layer="process",
        reason="ContainerEnded",
        message=f"{container} exited with {exit_code}{oom}",
        at=at,
        facts={"container": container, "exit_code": exit_code, "oom_killed": oom_killed, "ran_s": ran_s},
        is_warning=exit_code != 0,
    )


def freed(*, at: float) -> TraceStep:
    """Return that a kubelet has taken a pod's devices back."""
    message = "all devices of the pod are free again"
    return TraceStep(layer="kubelet", reason="DevicesFreed", message=message, at=at)
