"""Says in one word where a pod is, and why: what phases, conditions, requests and container states mean together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from fairlead.plan.pod import admission
from fairlead.wire.kubernetes import core, meta

_CRASH: Final = "CrashLoopBackOff"
IDLE: Final = "GPUsIdle"
"""Why a pod was ended: it did not use its GPUs."""
_STOPPED: Final = frozenset({"Stopped", "Preempted", "Reserved", IDLE})


def is_final(pod: core.Pod) -> bool:
    """Return whether the pod has ended for good."""
    return pod.status.phase in core.ENDED_PHASES


def state_of(pod: core.Pod) -> str:
    """Return the one word for where a pod is."""
    status = pod.status
    if status.phase in core.ENDED_PHASES:
        return "stopped" if status.reason in _STOPPED else status.phase.lower()
    if pod.metadata.deletion_timestamp is not None or status.stop_request is not None:
        return "stopping"
    if any(item.state.waiting and item.state.waiting.reason == _CRASH for item in statuses(pod)):
        return "crashed"
    if status.phase == "Running":
        return "running"
    return "creating" if pod.spec.node_name else "pending"


def why(pod: core.Pod) -> tuple[str, str]:
    """Return reason and message: the pod's own, else a waiting or ended container's, else the scheduler's."""
    if pod.status.reason or pod.status.message:
        return pod.status.reason, pod.status.message
    for item in statuses(pod):
        state = item.state
        if state.waiting and state.waiting.reason:
            return state.waiting.reason, state.waiting.message
    for item in statuses(pod):
        ended = item.state.terminated
        if ended and (ended.exit_code or is_final(pod)):
            return ended.reason, ended.message
    if not pod.spec.node_name:
        for condition in pod.status.conditions:
            if condition.type == "PodScheduled" and condition.status == "False":
                return condition.reason, condition.message
    return "", ""


def exit_code(pod: core.Pod) -> int | None:
    """Return the first exit code of a pod's containers that is not 0; None: none of them ended."""
    ended = (item.state.terminated for item in statuses(pod))
    codes = [one.exit_code for one in ended if one is not None]
    return next((code for code in codes if code), 0) if codes else None


def statuses(pod: core.Pod) -> Iterator[core.ContainerStatus]:
    """Yield the status of each container, init containers first."""
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def every_status(pod: core.Pod) -> Iterator[core.ContainerStatus]:
    """Yield the status of each container, ephemeral ones last."""
    yield from statuses(pod)
    yield from pod.status.ephemeral_container_statuses


def runs(pod: core.Pod, container: str) -> tuple[str, str]:
    """Return the ids of a container's run before the newest and of the newest that has begun; empty where none."""
    for status in every_status(pod):
        if status.name == container:
            before = status.last_state.terminated
            has_begun = status.state.running or status.state.terminated
            return before.container_id if before else "", status.container_id if has_begun else ""
    return "", ""


def restarts(pod: core.Pod, container: str) -> int:
    """Return how often a container of the pod was started again."""
    return next((status.restart_count for status in statuses(pod) if status.name == container), 0)


def last_exit_code(pod: core.Pod, container: str) -> int | None:
    """Return what the run before a container's newest ended with; None where there is none."""
    ended = next((status.last_state.terminated for status in statuses(pod) if status.name == container), None)
    return None if ended is None else ended.exit_code


def asked_devices(pod: core.Pod, container: str = "") -> dict[str, int]:
    """Return how many devices of each extended resource the pod asks for, or (by name) one of its containers."""
    spec = pod.spec
    if container:
        chosen = tuple(item for item in (*spec.containers, *spec.init_containers) if item.name == container)
        spec = core.PodSpec(containers=chosen)
    wanted = admission.effective_requests(spec)
    return {name: int(count) for name, count in wanted.items() if admission.is_extended(name) and count}


def say_devices(counts: Mapping[str, int]) -> str:
    """Return how many devices there are: of one resource a number, of several each by its name, never their sum.

    Thirty percents of a GPU's threads and 30 GiB of its memory are not 60 of anything.
    """
    found = {name: count for name, count in counts.items() if count}
    if len(found) < 2:
        return str(sum(found.values()))
    short = {name: name.rpartition("/")[2] for name in found}
    names = short if len({*short.values()}) == len(found) else dict(zip(found, found, strict=True))
    return " + ".join(f"{count} {names[name]}" for name, count in found.items())


def granted_devices(pod: core.Pod) -> dict[str, tuple[str, ...]]:
    """Return the device ids that the node's kubelet granted, by resource; its word in the status alone counts."""
    found: dict[str, dict[str, None]] = {}
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        for resource, ids in container_devices(status).items():
            found.setdefault(resource, {}).update(dict.fromkeys(ids))
    return {resource: tuple(ids) for resource, ids in found.items()}


def claimed_devices(pod: core.Pod) -> dict[str, tuple[str, ...]]:
    """Return the devices that the node's kubelet had prepared, by the pod's name for each claim."""
    found: dict[str, dict[str, None]] = {}
    for status in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        for one in status.allocated_resources_status:
            if one.name.startswith(core.CLAIM):
                claim = one.name.removeprefix(core.CLAIM).partition("/")[0]
                found.setdefault(claim, {}).update(dict.fromkeys(device.resource_id for device in one.resources))
    return {claim: tuple(ids) for claim, ids in found.items()}


def container_devices(status: core.ContainerStatus) -> dict[str, tuple[str, ...]]:
    """Return the device ids that one container was given, by resource; those of claims are left out."""
    return {
        one.name: tuple(device.resource_id for device in one.resources)
        for one in status.allocated_resources_status
        if not one.name.startswith(core.CLAIM)
    }


def with_devices(
    status: core.PodStatus,
    old: core.PodStatus,
    held: Mapping[str, Mapping[str, Sequence[str]]] | None,
    claimed: Mapping[str, tuple[core.ResourceStatus, ...]] | None = None,
) -> core.PodStatus:
    """Return the status with what each container holds.

    Args:    old: the status as it stands.
             held: by container and resource; None: the pod is over, what it had at last stays written.
             claimed: by container: the devices of its claims.
    """
    before = {one.name: one for one in (*old.init_container_statuses, *old.container_statuses)}

    def told(one: core.ContainerStatus) -> core.ContainerStatus:
        if held is None:
            kept = before[one.name].allocated_resources_status if one.name in before else ()
        else:
            kept = tuple(_resource(name, ids) for name, ids in sorted(held.get(one.name, {}).items()) if ids)
            kept += (claimed or {}).get(one.name, ())
        return msgspec.structs.replace(one, allocated_resources_status=kept)

    return msgspec.structs.replace(
        status,
        container_statuses=tuple(map(told, status.container_statuses)),
        init_container_statuses=tuple(map(told, status.init_container_statuses)),
    )


def _resource(name: str, ids: Sequence[str]) -> core.ResourceStatus:
    return core.ResourceStatus(name=name, resources=tuple(core.ResourceHealth(resource_id=one) for one in ids))


def with_addresses(status: core.PodStatus, addresses: Sequence[str]) -> core.PodStatus:
    """Return a status with the addresses of the pod's network namespace."""
    found = tuple(core.PodIP(ip=one) for one in addresses)
    return msgspec.structs.replace(status, pod_ip=found[0].ip if found else "", pod_ips=found)


def stopped(pod: core.Pod, grace_s: int | None) -> core.PodStatus:
    """Return the status of a pod that is to stop: with the request for its node's kubelet, or ended where it has none.

    Of two requests the later counts; one that names no grace leaves the earlier one's.
    """
    if not pod.spec.node_name:
        return core.PodStatus(
            phase="Failed",
            reason="Stopped",
            message="stopped before any node took it",
            resource_claim_statuses=pod.status.resource_claim_statuses,
        )
    before = pod.status.stop_request
    if grace_s is None and before is not None:
        grace_s = before.grace_period_seconds
    asked = core.StopRequest(requested_at=meta.now(), grace_period_seconds=grace_s)
    return msgspec.structs.replace(pod.status, stop_request=asked)


def lost(pod: core.Pod, message: str) -> core.PodStatus:
    """Return the status of a pod whose node is gone: over, with what is known of its containers."""
    return msgspec.structs.replace(pod.status, phase="Failed", reason="NodeNotHere", message=message)
