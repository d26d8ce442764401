"""Judges what a pod asks of one machine: where it is to run, and what is beyond Kubernetes' fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import device
from fairlead.wire.kubernetes import core, names

LIMITS: Final = (
    "core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio",
    "rttime", "sigpending", "stack",
)  # fmt: skip
"""Source: setrlimit(2), in the spelling of docker's `--ulimit`."""
_USER: Final = re.compile(r"[A-Za-z_0-9][A-Za-z0-9_.-]{0,31}\$?(:[A-Za-z_0-9][A-Za-z0-9_.-]{0,31}\$?)?")
"""useradd(8)'s rule, with capitals; a name never begins with what a command could take for an option."""
_LARGEST: Final = 2**63 - 1
_CLUSTERS_OWN: Final = "default-scheduler"
"""What an API server writes where a manifest names no scheduler.  Source: k8s.io/api/core/v1, DefaultSchedulerName."""
_WEEK_S: Final = 7 * 86400


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """The machine that a pod is submitted to."""

    node: str = ""
    """Name of its node; empty: any is taken."""
    scheduler: str = ""
    """Name of its scheduler; empty: any is taken."""
    resource: str = "nvidia.com/gpu"
    """Its whole GPUs."""
    devices: tuple[str, ...] = ()
    """CDI devices that people may ask for by name (`plan.pod.device.parse`)."""


def placed(pod: core.Pod, here: Here) -> core.Pod:
    """Return a pod that this machine's scheduler and kubelet will take up.

    A manifest exported from a cluster has the cluster's own scheduler and finalizers, which nothing here removes.
    Raises: Invalid (`NodeNotHere`, `SchedulerNotHere`): it would never be placed or run.
    """
    spec, name = pod.spec, pod.metadata.name or pod.metadata.generate_name
    if here.node and spec.node_name not in {"", here.node}:
        asked = errors.readable(spec.node_name)
        message = f'Pod "{name}": spec.nodeName "{asked}" is not here: this machine is the node "{here.node}"'
        raise errors.Invalid(message, reason="NodeNotHere", hint="leave spec.nodeName out, and it is placed here")
    if here.scheduler and spec.scheduler_name not in {"", _CLUSTERS_OWN, here.scheduler}:
        asked = errors.readable(spec.scheduler_name)
        message = f'Pod "{name}": spec.schedulerName "{asked}": no such scheduler runs here, "{here.scheduler}" does'
        raise errors.Invalid(message, reason="SchedulerNotHere", hint="leave spec.schedulerName out")
    about = msgspec.structs.replace(pod.metadata, finalizers=())
    if here.scheduler:
        spec = msgspec.structs.replace(spec, scheduler_name=here.scheduler)
    return msgspec.structs.replace(pod, metadata=about, spec=spec)


def is_elsewhere(pod: core.Pod, node: str) -> bool:
    """Return whether a pod is bound to a node that no kubelet of this machine serves: nothing would ever end it."""
    return bool(node) and pod.spec.node_name not in {"", node}


def is_user(text: str) -> bool:
    """Return whether a text names a user, or a user and a group, by number or name."""
    return _USER.fullmatch(text) is not None


def is_group(text: str) -> bool:
    """Return whether a text names a group, by number or name."""
    return ":" not in text and is_user(text)


def problems(spec: core.PodSpec) -> Iterator[str]:
    """Yield what is wrong with a pod's `machine`, and with its sharing of the node's namespaces."""
    if spec.host_network and any(port.host_port for item in spec.containers for port in item.ports):
        same = all(port.host_port in {0, port.container_port} for item in spec.containers for port in item.ports)
        if not same:
            yield "spec.containers.ports.hostPort: Invalid value: must match containerPort with hostNetwork"
    wanted = spec.machine
    if wanted is None:
        return
    if wanted.user and not is_user(wanted.user):
        yield f'spec.machine.user: Invalid value: "{wanted.user}": must be NAME or NAME:GROUP'
    if wanted.no_network and spec.host_network:
        yield "spec.machine.noNetwork: Forbidden: may not be given beside hostNetwork"
    if wanted.no_network and any(port.host_port for item in spec.containers for port in item.ports):
        yield "spec.machine.noNetwork: Forbidden: a port of the node leads into no container without a network"
    yield from _groups(wanted)
    yield from device.problems(wanted)
    ttl = wanted.ttl_seconds_after_finished
    if ttl is not None and not 0 <= ttl <= _WEEK_S:
        yield f"spec.machine.ttlSecondsAfterFinished: Invalid value: {ttl}: must be from 0 to {_WEEK_S}"
    if wanted.reservation and not names.is_dns_label(wanted.reservation):
        shown = errors.readable(wanted.reservation[:80])
        yield f'spec.machine.reservation: Invalid value: "{shown}": {names.DNS_RULE}'
    for index, one in enumerate(wanted.limits):
        yield from _limit(f"spec.machine.limits[{index}]", one)


def _groups(wanted: core.MachineOptions) -> Iterator[str]:
    for index, group in enumerate(wanted.groups):
        if not is_group(group):
            yield f'spec.machine.groups[{index}]: Invalid value: "{errors.readable(group[:80])}": must be a group'


def _limit(path: str, one: core.Limit) -> Iterator[str]:
    if one.name not in LIMITS:
        yield f'{path}.name: Unsupported value: "{one.name}": supported values: {", ".join(LIMITS)}'
    if not (-1 <= one.soft <= _LARGEST and -1 <= one.hard <= _LARGEST):
        yield f"{path}: Invalid value: {one.soft}:{one.hard}: must be -1 or a number of 63 bits"
    elif one.hard != -1 and (one.soft == -1 or one.soft > one.hard):
        yield f"{path}: Invalid value: {one.soft}:{one.hard}: the soft limit is above the hard one"
