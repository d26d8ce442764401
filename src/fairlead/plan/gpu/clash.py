"""Decides which GPUs another resource has: what a kubelet's list shows held under another name than ours. Pure.

A kubelet counts by resource name. After our resource is renamed, or beside another plugin on the same GPUs, it would
give a GPU away that a pod already has under the other name. A device that overlaps such a holding is kept back until
the holding ends. Replicas of one resource share on purpose and are not a clash; neither are two MIG devices of one GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from fairlead.model.ids import DeviceID
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.advertise import Advertisement
from fairlead.plan.gpu.attribution import Holding
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import Holder

REASON: Final = "HeldByOtherResource"
UNKNOWN: Final = "HoldersUnknown"
"""The kubelet has not said yet who holds what."""

Key = tuple[str, DeviceID]
"""A resource of ours and one of its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A device of ours whose GPU, or a part of it, a container has under another resource's name."""

    resource: str
    device: DeviceID
    holding: Holding

    @property
    def message(self) -> str:
        """Who has it and what ends that."""
        held = self.holding
        return (
            f"{held.namespace}/{held.pod} (container {held.container}) has it as {held.resource}, and it is offered as"
            f" {self.resource}: given to nobody until that pod has ended"
        )


def find_clashes(
    advertised: Iterable[Advertisement], holdings: Iterable[Holding], table: deviceids.Table
) -> dict[Key, Clash]:
    """Return the devices that overlap a holding of another resource; of several holdings one is named."""
    parts = [
        (one, part)
        for one in holdings
        for device in one.ids
        for part in deviceids.find_parts(one.resource, device, table)
    ]
    return {
        (ad.resource, device.id): Clash(resource=ad.resource, device=device.id, holding=holding)
        for ad in advertised
        for device in ad.devices
        for holding, part in reversed(parts)
        if holding.resource != ad.resource and part.overlaps(deviceids.Part(gpu=device.gpu, mig=device.mig))
    }


def without_ended(holdings: Iterable[Holding], pods: Iterable[core.Pod]) -> tuple[Holding, ...]:
    """Leave out holdings of pods that have ended: kubelets list some of them still, after a reboot for example."""
    by_name = _living(pods)
    return tuple(one for one in holdings if by_name.get((one.namespace, one.pod)) is not False)


def plan_kept(
    found: Mapping[Key, Clash], before: Mapping[Key, Clash], pods: Collection[core.Pod] | None
) -> dict[Key, Clash]:
    """Return the clashes that stand: those found, and earlier ones whose pod lives still.

    A kubelet that has just started lists no pod at all for a moment; its containers go on running.

    Args: pods: this node's pods; None: nobody knows them, then the kubelet's list alone counts.
    """
    by_name = _living(pods or ())
    living = {key: one for key, one in before.items() if by_name.get((one.holding.namespace, one.holding.pod)) is True}
    return {**living, **found}


def _living(pods: Iterable[core.Pod]) -> dict[tuple[str, str], bool]:
    """Return whether the pods of a name are alive: one of them at least."""
    alive: dict[tuple[str, str], bool] = {}
    for pod in pods:
        name = (pod.metadata.namespace, pod.metadata.name)
        alive[name] = alive.get(name, False) or pod.status.phase not in core.ENDED_PHASES
    return alive


def find_rivals(holders: Sequence[Holder]) -> tuple[Holder, Holder] | None:
    """Return two holders from different pods that have the same part of a GPU, None where nobody has.

    Two devices of one resource are that plugin's sharing; a DRA claim may be of several pods.
    """
    for one, other in combinations(holders, 2):
        is_other_pod = (one.namespace, one.pod) != (other.namespace, other.pod)
        if is_other_pod and not _shares(one, other) and _overlap(one, other):
            return one, other
    return None


def _shares(one: Holder, other: Holder) -> bool:
    is_one_resource = bool(one.resource) and one.resource == other.resource
    return is_one_resource and ("/" not in one.resource or not set(one.devices) & set(other.devices))


def _overlap(one: Holder, other: Holder) -> bool:
    return not one.mig_devices or not other.mig_devices or bool(set(one.mig_devices) & set(other.mig_devices))
