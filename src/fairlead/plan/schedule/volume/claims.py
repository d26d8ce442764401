"""Keeps claims, volumes and storage classes, and looks a pod's claims up in them.

A pod waits, whichever nodes there are, while a claim of it is missing, is bound to no volume although nothing waits for
the pod, or is one pod's alone and has it. Else `wanted` says what its volumes ask of a node. A claim that waits for its
first pod is bound in two steps: the chosen node is written on it, and once a provisioner has made the volume there the
pod is judged again by where that is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead.plan.schedule.volume import wanted
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.scheduling import storage

KINDS: Final = (core.PersistentVolumeClaim, storage.PersistentVolume, storage.StorageClass)
_ZONES: Final = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
_IN_USE: Final = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
_ONE_POD: Final = "ReadWriteOncePod"
_STATIC: Final = "spec.volumes[].persistentVolumeClaim of a class without provisioner that waits for its first pod"

Object = core.PersistentVolumeClaim | storage.PersistentVolume | storage.StorageClass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a pod waits whatever nodes there are."""

    why: str
    is_unknown: bool = False
    """It asks for what this scheduler does not know."""


class Claims:
    """What is known of claims; `users` gives the pods of a namespace that have a node and have not ended."""

    def __init__(self, users: Callable[[str], Iterable[core.Pod]]) -> None:
        """Begin without any."""
        self._users = users
        self._known: dict[type[Object], dict[tuple[str, str], Object]] = {kind: {} for kind in KINDS}

    def forget(self, kind: type[Object]) -> None:
        """Begin anew with one kind: a list follows."""
        self._known[kind].clear()

    def note(self, item: Object, *, is_gone: bool = False) -> None:
        """Take in what the watch says."""
        there, key = self._known[type(item)], (item.metadata.namespace, item.metadata.name)
        there.pop(key, None)
        if not is_gone:
            there[key] = item

    def claim(self, namespace: str, name: str) -> core.PersistentVolumeClaim | None:
        """Return a claim, None where it is not known."""
        found = self._known[core.PersistentVolumeClaim].get((namespace, name))
        return found if isinstance(found, core.PersistentVolumeClaim) else None

    def _volume(self, name: str) -> storage.PersistentVolume | None:
        found = self._known[storage.PersistentVolume].get(("", name))
        return found if isinstance(found, storage.PersistentVolume) else None

    def _class(self, name: str) -> storage.StorageClass | None:
        found = self._known[storage.StorageClass].get(("", name))
        return found if isinstance(found, storage.StorageClass) else None

    def look_up(self, pod: core.Pod) -> wanted.Wanted | Refusal:
        """Return what a pod's claims ask of a node, or why it waits."""
        found = list[wanted.Bound | wanted.Provisioned]()
        for name, owner in _names(pod):
            one = self._look_up(pod, name, owner)
            if isinstance(one, Refusal):
                return one
            found += one
        return tuple(found)

    def _look_up(self, pod: core.Pod, name: str, owner: str) -> tuple[wanted.Bound | wanted.Provisioned, ...] | Refusal:
        claim = self.claim(pod.metadata.namespace, name)
        if claim is None:
            none_at_all = "" if self._known[core.PersistentVolumeClaim] else ", and none is known: may they be listed?"
            return Refusal(f'persistentvolumeclaim "{name}" not found{none_at_all}')
        about = claim.metadata
        if owner and not any(one.uid == owner for one in about.owner_references):
            return Refusal(f'persistentvolumeclaim "{name}" was not created for pod "{pod.metadata.name}"')
        if about.deletion_timestamp is not None:
            return Refusal(f'persistentvolumeclaim "{name}" is being deleted')
        if _ONE_POD in claim.spec.access_modes and self._is_used(pod, name):
            return Refusal(_IN_USE)
        if claim.spec.volume_name and storage.BIND_COMPLETED in about.annotations:
            return self._bound(claim)
        return self._unbound(claim)

    def _is_used(self, pod: core.Pod, name: str) -> bool:
        others = (one for one in self._users(pod.metadata.namespace) if one.metadata.uid != pod.metadata.uid)
        return any(name in {used for used, _ in _names(one)} for one in others)

    def _bound(self, claim: core.PersistentVolumeClaim) -> tuple[wanted.Bound, ...] | Refusal:
        volume = self._volume(claim.spec.volume_name)
        if volume is None:
            name, gone = claim.metadata.name, claim.spec.volume_name
            return Refusal(f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{gone}"')
        required = volume.spec.node_affinity.required if volume.spec.node_affinity else None
        labels = volume.metadata.labels
        zones = tuple((key, frozenset(labels[key].split("__"))) for key in _ZONES if key in labels)
        return (wanted.Bound(core.NodeAffinity(required_during_scheduling_ignored_during_execution=required), zones),)

    def _unbound(self, claim: core.PersistentVolumeClaim) -> tuple[wanted.Provisioned, ...] | Refusal:
        chosen = self._class(claim.spec.storage_class_name or "")
        if chosen is None or chosen.volume_binding_mode != storage.FIRST_CONSUMER or claim.spec.volume_name:
            return Refusal("pod has unbound immediate PersistentVolumeClaims")
        if chosen.provisioner in storage.NO_PROVISIONER:
            return Refusal(_STATIC, is_unknown=True)
        terms = tuple(
            tuple((one.key, frozenset(one.values)) for one in term.match_label_expressions)
            for term in chosen.allowed_topologies
        )
        node = claim.metadata.annotations.get(storage.SELECTED_NODE, "")
        return (wanted.Provisioned(claim.metadata.name, terms, node),)


def has_claims(pod: core.Pod) -> bool:
    """Return whether a pod has volumes that are claims of a cluster."""
    return next(_names(pod), None) is not None


def _names(pod: core.Pod) -> Iterator[tuple[str, str]]:
    """Yield the claims of a pod; behind each, where it is made for the pod, the pod's uid."""
    if pod.spec.machine and pod.spec.machine.has_local_claims:
        return
    for one in pod.spec.volumes:
        if one.persistent_volume_claim is not None:
            yield one.persistent_volume_claim.claim_name, ""
        elif one.ephemeral is not None:
            yield f"{pod.metadata.name}-{one.name}", pod.metadata.uid


def chosen(claim: core.PersistentVolumeClaim, node: str) -> core.PersistentVolumeClaim:
    """Return a claim with the node near which its volume is to be made."""
    annotations = {**claim.metadata.annotations, storage.SELECTED_NODE: node}
    return msgspec.structs.replace(claim, metadata=msgspec.structs.replace(claim.metadata, annotations=annotations))


def on_node(claim: core.PersistentVolumeClaim, node: str) -> core.PersistentVolumeClaim:
    """Return what is merged into a claim so that its volume is made near a node."""
    about = claim.metadata
    annotations: Mapping[str, str] = {storage.SELECTED_NODE: node}
    meta = type(about)(name=about.name, namespace=about.namespace, uid=about.uid, annotations=annotations)
    return core.PersistentVolumeClaim(metadata=meta)
