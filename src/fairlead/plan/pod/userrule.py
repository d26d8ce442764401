"""Says what a user of a shared machine may ask for: pods in a namespace of their own, by the rules for tenants. Pure.

The namespace is made of the number that the kernel gives the user, never of a name: names are what others may choose.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from fairlead.plan.pod import mountable, podstate
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.pod.probe import Probe

_PREFIX: Final = "user-"
LONGEST_GRACE_S: Final = 3600
"""A preemption, a budget and the end of a tenancy wait for a container's own grace."""
_PRIVILEGED_PORTS: Final = 1024
"""Ports below it say "I am this machine's service".  Source: ip(7), ip_unprivileged_port_start."""

LIMITS: Final = ("core", "cpu", "data", "fsize", "locks", "memlock", "nofile", "nproc", "rss", "stack")
"""Limits of processes (`--ulimit`) that reach no further than the container: its cgroup counts memory that is locked.

Not those of the machine's own scheduler: a real-time process passes the container's share of the processors by.
Source: setrlimit(2), sched(7).
"""


def namespace(uid: int) -> str:
    """Return the namespace of a user's containers."""
    return f"{_PREFIX}{uid}"


def uid_of(name: str) -> int | None:
    """Return whose namespace it is; None where it is not a user's."""
    digits = name.removeprefix(_PREFIX)
    return int(digits) if digits != name and digits.isascii() and digits.isdecimal() else None


def problems(pod: core.Pod, mounts: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what a pod asks for that a user may not, beside the rules for tenants' pods (`tenantrule`).

    Args: mounts: folders of the machine that users may mount (`mountable.parse`).
    """
    return (*mountable.problems(pod, mounts), *_problems(pod))


def _problems(pod: core.Pod) -> Iterator[str]:
    about, spec = pod.metadata, pod.spec
    for port in sorted({one.host_port for one in _ports(pod) if 0 < one.host_port < _PRIVILEGED_PORTS}):
        yield f"port {port} of the host is one of root's: take one from {_PRIVILEGED_PORTS} on"
    if spec.node_name:
        yield "spec.nodeName passes the queue by"
    if spec.priority is not None or spec.priority_class_name:
        yield "a priority puts it before the pods of other users"
    if spec.termination_grace_period_seconds > LONGEST_GRACE_S:
        yield f"spec.terminationGracePeriodSeconds above {LONGEST_GRACE_S} keeps its GPUs from those they are owed to"
    probes = (probe for item in (*spec.containers, *spec.init_containers) for probe in _probes(item) if probe)
    if max((probe.termination_grace_period_seconds or 0 for probe in probes), default=0) > LONGEST_GRACE_S:
        yield f"a probe's terminationGracePeriodSeconds above {LONGEST_GRACE_S} keeps its GPUs from those in the queue"
    beyond = [one.name for one in (spec.machine.limits if spec.machine else ()) if one.name not in LIMITS]
    if beyond:
        yield f"the limit {', '.join(beyond)} reaches beyond the container: take {', '.join(LIMITS)}"
    if about.finalizers:
        yield "metadata.finalizers would keep its record for ever"
    if about.owner_references:
        yield "metadata.ownerReferences names other objects"


def _probes(item: core.Container) -> tuple[Probe | None, ...]:
    return item.startup_probe, item.liveness_probe


def _ports(pod: core.Pod) -> Iterator[core.ContainerPort]:
    for item in (*pod.spec.containers, *pod.spec.init_containers):
        yield from item.ports


def quota(pod: core.Pod, limit: int, present: Iterable[core.ResourceQuota]) -> core.ResourceQuota | None:
    """Return the quota that stands for the machine's limit of devices a user; None where it sets none for this pod.

    Args: limit: of each resource; 0: none.   present: the namespace's own quotas, which go before it.
    """
    stated = {name for item in present for name in item.spec.hard}
    asked = {f"requests.{name}" for name in podstate.asked_devices(pod)} - stated
    if not limit or not asked:
        return None
    return core.ResourceQuota(
        metadata=meta.ObjectMeta(name="api.user_gpus", namespace=pod.metadata.namespace),
        spec=core.ResourceQuotaSpec(hard=dict.fromkeys(sorted(asked), str(limit))),
    )
