"""Decides what a pod says about the health of its GPUs, and what a GPU says about its holders. Pure.

A pod is told only what concerns it: the condition appears when a GPU it holds falls ill, and stays, as True again, once
all of them are well. Whoever runs the pod decides what follows from it; nothing is ended here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model import replica
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu import health
from fairlead.plan.gpu.attribution import Holding
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import Holder

CONDITION: Final = "fairlead.dev/GPUHealthy"
RECOVERED: Final = "GPURecovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ill:
    """A GPU that a pod holds and should not trust."""

    gpu: GPUUUID
    reason: str
    message: str


def gpu_of(device: DeviceID, gpus: Mapping[str, GPUUUID]) -> GPUUUID | None:
    """Return the GPU that a device is, or lives on; None: it is on none that this machine had.

    Args: gpus: by UUID of the GPU or MIG device, as `model.device.gpus_by_device` gives them.
    """
    return gpus.get(replica.origin(device))


def find_ill(
    pod: core.Pod,
    holdings: Iterable[Holding],
    *,
    gpus: Mapping[str, GPUUUID],
    verdicts: Mapping[GPUUUID, health.Verdict],
) -> tuple[Ill, ...]:
    """Return the GPUs a pod holds that are not offered, each once, in order of their uuid."""
    about = (pod.metadata.namespace, pod.metadata.name)
    found = (gpu_of(name, gpus) for one in holdings if (one.namespace, one.pod) == about for name in one.ids)
    held = {gpu for gpu in found if gpu is not None}
    judged = ((gpu, verdicts[gpu]) for gpu in sorted(held) if gpu in verdicts)
    return tuple(
        Ill(gpu=gpu, reason=verdict.reason, message=verdict.message or verdict.reason)
        for gpu, verdict in judged
        if not verdict.is_healthy
    )


def plan_condition(pod: core.Pod, ill: Sequence[Ill], *, now: str) -> meta.Condition | None:
    """Return the condition that must be written, None where what stands there is right.

    Args:    now: the time as Kubernetes writes it.
    """
    old = meta.find_condition(pod.status.conditions, CONDITION)
    if not ill and (old is None or old.status == "True"):
        return None
    status = "False" if ill else "True"
    reason = ill[0].reason if ill else RECOVERED
    message = "; ".join(f"{one.gpu}: {one.message}" for one in ill) or "every GPU of the pod is offered again"
    if old is not None and (old.status, old.reason, old.message) == (status, reason, message):
        return None
    return meta.Condition(type=CONDITION, status=status, reason=reason, message=message, last_transition_time=now)


def plan_holders(
    holdings: Iterable[Holding], *, gpus: Mapping[str, GPUUUID], pods: Iterable[core.Pod]
) -> dict[GPUUUID, tuple[Holder, ...]]:
    """Return who holds each GPU or a part of it, in order of namespace, pod and container; nobody: left out.

    Args:    pods: this node's pods, for their uids; of two with one name the one that is not being deleted counts.
    """
    uids: dict[tuple[str, str], str] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.deletion_timestamp is None):
        uids[pod.metadata.namespace, pod.metadata.name] = pod.metadata.uid
    found: dict[GPUUUID, set[tuple[str, str, str]]] = {}
    for one in holdings:
        for device in one.ids:
            gpu = gpu_of(device, gpus)
            if gpu is not None:
                found.setdefault(gpu, set()).add((one.namespace, one.pod, one.container))
    return {
        gpu: tuple(
            Holder(namespace=namespace, pod=pod, container=container, pod_uid=uids.get((namespace, pod), ""))
            for namespace, pod, container in sorted(held)
        )
        for gpu, held in found.items()
    }
