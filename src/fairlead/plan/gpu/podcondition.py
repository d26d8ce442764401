"""Decides what a pod says about the health of its GPUs, and what a GPU says about its holders. Pure.

A pod gets the condition only for what concerns it: the condition appears when a GPU it holds falls ill, and stays, as
True again, once all of them are well. The owner of the pod decides what follows from it; nothing is ended here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu import clash, deviceids, health
from fairlead.plan.gpu.attribution import Holding
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.gpudevice import Holder

CONDITION: Final = "fairlead.dev/GPUHealthy"
RECOVERED: Final = "GPURecovered"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhealthyGPU:
    """A GPU that a pod holds and should not trust."""

    gpu: GPUUUID
    reason: str
    message: str


def find_unhealthy(
    pod: core.Pod,
    holdings: Iterable[Holding],
    *,
    table: deviceids.Table,
    verdicts: Mapping[GPUUUID, health.Verdict],
) -> tuple[UnhealthyGPU, ...]:
    """Return the GPUs a pod holds that are not offered, each once, in order of their uuid."""
    about = (pod.metadata.namespace, pod.metadata.name)
    held = {
        part.gpu
        for one in holdings
        if (one.namespace, one.pod) == about
        for name in one.ids
        for part in deviceids.find_parts(one.resource, name, table)
    }
    judged = ((gpu, verdicts[gpu]) for gpu in sorted(held) if gpu in verdicts)
    return tuple(
        UnhealthyGPU(gpu=gpu, reason=verdict.reason, message=verdict.message or verdict.reason)
        for gpu, verdict in judged
        if not verdict.is_healthy
    )


def plan_condition(pod: core.Pod, ill: Sequence[UnhealthyGPU], *, now: str) -> meta.Condition | None:
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
    holdings: Iterable[Holding], *, table: deviceids.Table, pods: Sequence[core.Pod]
) -> dict[GPUUUID, tuple[Holder, ...]]:
    """Return who holds each GPU or a part of it, in order of namespace, pod and container; free GPUs are left out.

    Args:    pods: this node's pods, for their uids; of two with one name the one that is not being deleted counts.
             Ended ones hold nothing.
    """
    uids: dict[tuple[str, str], str] = {}
    for pod in sorted(pods, key=lambda pod: pod.metadata.deletion_timestamp is None):
        uids[pod.metadata.namespace, pod.metadata.name] = pod.metadata.uid
    found: dict[GPUUUID, dict[tuple[str, str, str, str], dict[DeviceID, str | None]]] = {}
    for one in clash.without_ended(holdings, pods):
        for device in one.ids:
            for part in deviceids.find_parts(one.resource, device, table):
                who = (one.namespace, one.pod, one.container, one.resource)
                found.setdefault(part.gpu, {}).setdefault(who, {})[device] = part.mig
    return {
        gpu: tuple(_holder(who, held, uids) for who, held in sorted(holders.items())) for gpu, holders in found.items()
    }


def _holder(
    who: tuple[str, str, str, str], held: Mapping[DeviceID, str | None], uids: Mapping[tuple[str, str], str]
) -> Holder:
    namespace, pod, container, resource = who
    return Holder(
        namespace=namespace,
        pod=pod,
        container=container,
        pod_uid=uids.get((namespace, pod), ""),
        resource=resource,
        devices=tuple(sorted(held)),
        mig_devices=() if None in held.values() else tuple(sorted({mig for mig in held.values() if mig is not None})),
    )
