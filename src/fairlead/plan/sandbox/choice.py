"""Decides a pod's isolation from what it asks for and what its tenancy demands. Pure.

A tenancy's isolation binds all its pods: one that asks for nothing gets it, one that asks for another is refused. The
answer is a pod's `runtimeClassName`, Kubernetes' own field, on one machine too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from fairlead import errors
from fairlead.model.container import isolation
from fairlead.plan.fabric import size
from fairlead.plan.pod import admission
from fairlead.wire.kubernetes import core

_SIZED: Final = re.compile(re.escape(isolation.KATA_CLASS) + r"-x([1-9][0-9]?)")
OFFERED: Final = "none, gvisor, vm"


def check_word(word: str) -> str:
    """Return an isolation as it came; empty: nothing is asked for. Raises: Invalid (`IsolationInvalid`)."""
    if word not in {"", *isolation.WORDS}:
        message = f'isolation "{errors.readable(word)}" is not offered ({OFFERED} are)'
        raise errors.Invalid(message, reason="IsolationInvalid", hint="`gvisor` works on one machine, `vm` on clusters")
    return word


def bound(pod: core.Pod, demanded: str, tenancy: str) -> core.Pod:
    """Return a pod with the isolation that its tenancy demands.

    Args:    demanded: `spec.isolation` of the tenancy; empty: it leaves the choice to each pod.
             tenancy: its name.
    Raises:  Denied (`IsolationBound`): the pod asks for another.
    """
    if not demanded:
        return pod
    asked = pod.spec.runtime_class_name
    if not asked and not is_plain(pod):
        wanted = isolation.class_of(demanded)
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, runtime_class_name=wanted))
    if isolation.of_class(asked) != demanded:
        shown = errors.readable(isolation.of_class(asked))
        message = f'isolation "{shown}" is asked for, and each container of tenancy "{tenancy}" has {demanded}'
        raise errors.Denied(message, reason="IsolationBound", hint="leave --isolation and runtimeClassName out")
    return pod


def sized(pod: core.Pod, classes: Iterable[str]) -> core.Pod:
    """Return a pod for a virtual machine with the smallest class of machines that has room for its GPUs.

    Their overhead, which quotas count, grows with the GPUs. One that names a size keeps it.
    Args: classes: RuntimeClasses of the cluster.
    """
    if pod.spec.runtime_class_name != isolation.KATA_CLASS:
        return pod
    # Of extended resources limits and requests are one, and a pod that is not admitted yet may have limits alone.
    limits = admission.effective_limits(pod.spec)
    # One slot of a node's NVLink fabric is one device, and has several GPUs.
    asked = sum(int(count) * (size.gpus_of(name) or 1) for name, count in limits.items() if admission.is_extended(name))
    found = (_SIZED.fullmatch(name) for name in classes)
    fitting = sorted((int(one[1]), one[0]) for one in found if one is not None and int(one[1]) >= max(1, asked))
    if not fitting:
        return pod
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, runtime_class_name=fitting[0][1]))


def spoken(pod: core.Pod) -> core.Pod:
    """Return a pod as an API server takes it: without the word `none`, for which Kubernetes has no field."""
    if not is_plain(pod):
        return pod
    options = msgspec.structs.replace(pod.spec.machine or core.MachineOptions(), has_no_sandbox=False)
    machine = None if options == core.MachineOptions() else options
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, machine=machine))


CLASS_HINTS: Final = {
    isolation.GVISOR: "`runtimeClass.gvisor.create=true` in the chart makes it, for nodes that have gVisor",
    isolation.VM: "`runtimeClass.kata.create=true` in the chart makes it, for nodes that have Kata 4.1.0 or newer",
    isolation.NONE: "",
}
"""What makes the RuntimeClass of an isolation."""


def is_plain(pod: core.Pod) -> bool:
    """Return whether a request said `none`, which is another thing than saying nothing."""
    return pod.spec.machine is not None and pod.spec.machine.has_no_sandbox


def refuse_machines(word: str) -> None:
    """Refuse an isolation that one machine cannot give. Raises: Unavailable (`IsolationUnavailable`)."""
    if word == isolation.VM:
        message = "isolation vm needs a Kubernetes cluster whose nodes have Kata: podman starts no virtual machines"
        hint = "`--isolation gvisor` works on one machine, once `fairlead runtime configure --gvisor` was run"
        raise errors.Unavailable(message, reason="IsolationUnavailable", hint=hint)


def on_one_machine(pod: core.Pod) -> bool:
    """Return whether a pod asks for gVisor.

    Raises: Unavailable (`IsolationUnavailable`): it asks for a virtual machine.
            Invalid (`IsolationInvalid`): it asks for what podman cannot give beside gVisor.
    """
    word = isolation.of_class(pod.spec.runtime_class_name)
    refuse_machines(word)
    if word != isolation.GVISOR:
        return False
    if problem := _problem(pod.spec):
        raise errors.Invalid(f"isolation gvisor: {problem[0]}", reason="IsolationInvalid", hint=problem[1])
    return True


def _problem(spec: core.PodSpec) -> tuple[str, str] | None:
    """Return what cannot be on gVisor under podman, and what to do.

    gVisor's own network stack takes the addresses of the network namespace it is given: the host would lose its own.
    """
    if spec.share_process_namespace:
        return ("a process namespace cannot be shared under podman", "leave --init and shareProcessNamespace out")
    if spec.host_network:
        return ("the host's network cannot be shared", "leave --network host out, and publish ports with -p")
    if spec.host_ipc:
        return ("the host's shared memory cannot be shared", "leave --ipc host out")
    return None
