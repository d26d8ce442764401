"""Judges ephemeral containers, in the API server's words, and adds them to a pod that runs. Pure.

Source: kubernetes pkg/apis/core/validation (validateEphemeralContainers, ValidatePodEphemeralContainersUpdate).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.pod import admission, podstate
from fairlead.wire.kubernetes import core

MOST: Final = 32
"""Of one pod, ended ones too, since they stay in its spec: each is a container that no quota counts."""
_NOT_ALLOWED: Final = {
    "ports": "ports",
    "livenessProbe": "liveness_probe",
    "readinessProbe": "readiness_probe",
    "startupProbe": "startup_probe",
    "lifecycle": "lifecycle",
    "resources": "resources",
    "restartPolicy": "restart_policy",
}
"""Fields that it may not have, and where they are read."""


def unserved(pod: core.Pod) -> errors.Unavailable | None:
    """Return why nothing joins such a pod; None: it can be joined."""
    if not pod.spec.runtime_class_name:
        return None
    message = f'container "{pod.metadata.name}" runs on {pod.spec.runtime_class_name}, whose namespaces are its own'
    return errors.Unavailable(message, reason="DebugNotServed", hint="`fairlead exec` runs a program of its image")


def added(pod: core.Pod, item: core.EphemeralContainer) -> core.Pod:
    """Return a pod with one more ephemeral container.

    Raises: Conflict (`ContainerNotRunning`): the pod has ended or is ending; (`TooManyEphemeralContainers`); Invalid
            (`PodInvalid`): rule by rule, by paths; Unavailable (`DebugNotServed`).
    """
    name = pod.metadata.name
    if podstate.is_final(pod) or podstate.state_of(pod) == "stopping":
        message = f'container "{name}" is {podstate.state_of(pod)}: nothing can join it'
        raise errors.Conflict(message, reason="ContainerNotRunning", hint=f"`fairlead logs {name}`, `fairlead trace`")
    if refused := unserved(pod):
        raise refused
    present = pod.spec.ephemeral_containers
    if len(present) >= MOST:
        message = f'"{name}" has had {len(present)} ephemeral containers, at most {MOST} join one'
        raise errors.Conflict(message, reason="TooManyEphemeralContainers", hint="`fairlead exec`, or restart it")
    path = f"spec.ephemeralContainers[{len(present)}]"
    if problems := list(_problems(path, pod.spec, item)):
        text = "; ".join(problems)
        raise errors.Invalid(f'Pod "{name}" is invalid: {text}', reason="PodInvalid", problems=problems)
    kept = msgspec.structs.replace(item, image_pull_policy=item.image_pull_policy or "IfNotPresent")
    return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, ephemeral_containers=(*present, kept)))


def _problems(path: str, spec: core.PodSpec, item: core.EphemeralContainer) -> Iterator[str]:
    yield from admission.container_problems(path, item, {one.name: one for one in spec.volumes})
    names = [one.name for one in (*spec.containers, *spec.init_containers)]
    if item.name in {*names, *(one.name for one in spec.ephemeral_containers)}:
        yield f'{path}.name: Duplicate value: "{item.name}"'
    plain = core.Container(name="")
    for name, field in _NOT_ALLOWED.items():
        if getattr(item, field) != getattr(plain, field):
            yield f"{path}.{name}: Forbidden: cannot be set for an Ephemeral Container"
    for index, mount in enumerate(item.volume_mounts):
        if mount.sub_path or mount.sub_path_expr:
            yield f"{path}.volumeMounts[{index}].subPath: Forbidden: cannot be set for an Ephemeral Container"
    target = item.target_container_name
    if target and target not in names:
        yield f'{path}.targetContainerName: Not found: "{errors.readable(target[:80])}"'
    texts = [item.working_dir, *item.command, *item.args, *(word for one in item.env for word in (one.name, one.value))]
    if any("\0" in text for text in texts):
        yield f"{path}: Invalid value: must not contain NUL"
