"""Decides which GPUs another resource has: what a kubelet's list shows held under another name than ours. Pure.

A kubelet counts by resource name. After our resource is renamed, or beside another plugin on the same GPUs, it would
give a GPU away that a pod already has under the other name. A device that overlaps such a holding is withheld until
the holding ends. Replicas of one device share on purpose and are not a clash; neither are two MIG devices of one GPU.
When a configuration begins or ceases to share a resource under its old name, a pod's whole GPU and that GPU's replicas
(or the other way round) are devices of one resource: there, too, the new ones are withheld until the pod has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from fairlead.model import replica
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu import deviceids
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.offer.advertise import Advertisement
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.gpudevice import Holder
from fairlead.wire.nvidia.pluginconfig import MPS_AMOUNTS

REASON: Final = "HeldByOtherResource"
UNKNOWN: Final = "HoldersUnknown"
"""The kubelet has not said yet who holds what."""

Key = tuple[str, DeviceID]
"""A resource that Fairlead offers, and one of its devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """A device whose GPU, or a part of it, a container has by another device: mostly of another resource."""

    resource: str
    device: DeviceID
    holding: Holding
    pod_uid: str = ""
    """Of the pod that holds it; empty: the API server did not know it."""

    @property
    def message(self) -> str:
        """Who has it and what ends that."""
        held = self.holding
        if held.resource == self.resource:
            return (
                f"{held.namespace}/{held.pod} (container {held.container}) has its GPU by {', '.join(held.ids)}, as"
                f" {self.resource} was shared before: given to no pod until that pod has ended"
            )
        return (
            f"{held.namespace}/{held.pod} (container {held.container}) has it as {held.resource}, and it is offered as"
            f" {self.resource}: given to no pod until that pod has ended"
        )


def find_clashes(
    advertised: Iterable[Advertisement],
    holdings: Iterable[Holding],
    table: deviceids.Table,
    pods: Iterable[core.Pod] = (),
) -> dict[Key, Clash]:
    """Return the devices that overlap a holding of another resource; of several holdings one is named.

    Args: pods: this node's pods, for the uids of the holders.
    """
    uids = {_name(pod): pod.metadata.uid for pod in pods if pod.status.phase not in core.ENDED_PHASES}
    listed, found = tuple(holdings), dict[Key, Clash]()
    for ad in advertised:
        foreign: dict[GPUUUID, list[tuple[deviceids.Part, Holding]]] = {}
        for one in listed:
            if one.resource == ad.resource or {one.resource, ad.resource} <= MPS_AMOUNTS:
                continue  # see `_former`; threads and memory of a GPU are given beside each other
            for part in (part for name in one.ids for part in deviceids.find_parts(one.resource, name, table)):
                foreign.setdefault(part.gpu, []).append((part, one))
        former = _former(ad, listed, table)
        for device in ad.devices:
            own = deviceids.Part(gpu=device.gpu, mig=device.part)
            others = [one for part, one in foreign.get(device.gpu, ()) if part.overlaps(own)]
            earlier = [
                one
                for part, held, one in former.get(device.gpu, ())
                if part.overlaps(own) and not _shares_with(held, device.id)
            ]
            holding = next(iter((*others, *earlier)), None)
            if holding is not None:
                uid = uids.get((holding.namespace, holding.pod), "")
                found[ad.resource, device.id] = Clash(
                    resource=ad.resource, device=device.id, holding=holding, pod_uid=uid
                )
    return found


def _former(
    ad: Advertisement, listed: Iterable[Holding], table: deviceids.Table
) -> dict[GPUUUID, list[tuple[deviceids.Part, DeviceID, Holding]]]:
    """Return who holds devices that a resource no longer has, or whole devices where it has replicas."""
    now = {device.id for device in ad.devices}
    found: dict[GPUUUID, list[tuple[deviceids.Part, DeviceID, Holding]]] = {}
    for one in listed:
        for held in one.ids if one.resource == ad.resource else ():
            if held not in now:
                for part in deviceids.find_parts(one.resource, held, table):
                    found.setdefault(part.gpu, []).append((part, held, one))
    return found


def _shares_with(held: DeviceID, offered: DeviceID) -> bool:
    """Return whether both are replicas of one device."""
    origin = replica.origin(held)
    return origin == replica.origin(offered) and origin not in {held, offered}


def without_ended(holdings: Iterable[Holding], pods: Iterable[core.Pod]) -> tuple[Holding, ...]:
    """Leave out holdings of pods that have ended: kubelets list some of them still, after a reboot for example."""
    by_name = _living(pods)
    return tuple(one for one in holdings if by_name.get((one.namespace, one.pod)) is not False)


def plan_kept(
    found: Mapping[Key, Clash], before: Mapping[Key, Clash], pods: Collection[core.Pod] | None
) -> dict[Key, Clash]:
    """Return the clashes that stand: those found, and earlier ones whose pod lives still.

    A kubelet that has just started lists no pod at all for a moment; its containers go on running.

    Args: pods: this node's pods; None: they are not known, then the kubelet's list alone counts.
    """
    alive = [pod for pod in pods or () if pod.status.phase not in core.ENDED_PHASES]
    uids, names = {pod.metadata.uid for pod in alive}, {_name(pod) for pod in alive}

    def lives(one: Clash) -> bool:
        # By uid, because a new pod may have the same name; by name where the API server did not know the pod.
        return one.pod_uid in uids if one.pod_uid else (one.holding.namespace, one.holding.pod) in names

    return {**{key: one for key, one in before.items() if lives(one)}, **found}


def _name(pod: core.Pod) -> tuple[str, str]:
    return pod.metadata.namespace, pod.metadata.name


def _living(pods: Iterable[core.Pod]) -> dict[tuple[str, str], bool]:
    """Return whether the pods of a name are alive: one of them at least."""
    alive: dict[tuple[str, str], bool] = {}
    for pod in pods:
        name = _name(pod)
        alive[name] = alive.get(name, False) or pod.status.phase not in core.ENDED_PHASES
    return alive


def concerns(clashes: Mapping[Key, Clash], pod: core.Pod) -> bool:
    """Return whether one of the clashes is with a pod."""
    return any((one.holding.namespace, one.holding.pod) == _name(pod) for one in clashes.values())


def find_rivals(holders: Sequence[Holder]) -> tuple[Holder, Holder] | None:
    """Return two holders from different pods that have the same part of a GPU, None where there are none.

    Two devices of one resource are that plugin's sharing; a DRA claim may be of several pods.
    """
    for one, other in combinations(holders, 2):
        is_other_pod = (one.namespace, one.pod) != (other.namespace, other.pod)
        if is_other_pod and not _shares(one, other) and _overlap(one, other):
            return one, other
    return None


def _shares(one: Holder, other: Holder) -> bool:
    if {one.resource, other.resource} == MPS_AMOUNTS:
        return True
    is_one_resource = bool(one.resource) and one.resource == other.resource
    return is_one_resource and ("/" not in one.resource or not set(one.devices) & set(other.devices))


def _overlap(one: Holder, other: Holder) -> bool:
    return not one.mig_devices or not other.mig_devices or bool(set(one.mig_devices) & set(other.mig_devices))
