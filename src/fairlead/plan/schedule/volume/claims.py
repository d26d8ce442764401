"""Keeps claims, volumes and storage classes, and looks a pod's claims up in them.

A pod waits, whichever nodes there are, while a claim of it is missing, is bound to no volume although nothing waits for
the pod, or is one pod's alone and has it. Else `wanted` says what its volumes ask of a node. A claim that waits for its
first pod is bound in two steps: a volume that is there already is given to it, or the chosen node is written on it and
a provisioner makes one there; once they are bound the pod is judged again by where the volume is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final

import msgspec

from fairlead import errors
from fairlead.plan.schedule import peers
from fairlead.plan.schedule.constraint import Refusal
from fairlead.plan.schedule.volume import wanted
from fairlead.wire.kubernetes import core, quantity, selector
from fairlead.wire.kubernetes.scheduling import storage

KINDS: Final = (core.PersistentVolumeClaim, storage.PersistentVolume, storage.StorageClass, storage.CSINode)
_ZONES: Final = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "failure-domain.beta.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region",
)
_IN_USE: Final = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
_ONE_POD: Final = "ReadWriteOncePod"
_LOST: Final = "Lost"
"""The phase of a claim whose volume is gone."""

Object = core.PersistentVolumeClaim | storage.PersistentVolume | storage.StorageClass | storage.CSINode


class Claims:
    """What is known of claims; `users` gives the pods of a namespace that have a node and have not ended."""

    def __init__(self, users: Callable[[str], Iterable[core.Pod]]) -> None:
        """Begin without any."""
        self._users = users
        self._known: dict[type[Object], dict[tuple[str, str], Object]] = {kind: {} for kind in KINDS}

    def forget(self, kind: type[Object]) -> None:
        """Reset one kind: a list follows."""
        self._known[kind].clear()

    def note(self, item: Object, *, is_gone: bool = False) -> None:
        """Take in what the watch says."""
        there, key = self._known[type(item)], (item.metadata.namespace, item.metadata.name)
        there.pop(key, None)
        if not is_gone:
            there[key] = item

    def is_current(self, item: Object) -> bool:
        """Return whether the watch has said nothing newer of an object, whatever was noted of it beside."""
        known = self._known[type(item)].get((item.metadata.namespace, item.metadata.name))
        return known is not None and known.metadata.resource_version == item.metadata.resource_version

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
        found = list[tuple[Fraction, wanted.Bound | wanted.Unbound]]()
        for name, owner in _names(pod):
            one = self._look_up(pod, name, owner)
            if isinstance(one, Refusal):
                return one
            claim = self.claim(pod.metadata.namespace, name)
            found.append((_asked(claim) if claim is not None else Fraction(0), one))
        return tuple(one for _, one in sorted(found, key=lambda pair: pair[0]))

    def attached(self, pod: core.Pod) -> wanted.Attached:
        """Return the volumes of a pod that count against what its node can attach, made or yet to be made."""
        found = set[tuple[str, str]]()
        for name, _ in _names(pod):
            claim = self.claim(pod.metadata.namespace, name)
            if claim is None:
                continue
            volume = self._volume(claim.spec.volume_name) if claim.spec.volume_name else None
            if volume is not None and volume.spec.csi is not None:
                found.add((volume.spec.csi.driver, volume.spec.csi.volume_handle))
            elif volume is None and (one := self._class(claim.spec.storage_class_name or "")) is not None:
                found.add((one.provisioner, f"{pod.metadata.namespace}/{name}"))
        return frozenset(found)

    def limits(self, node: str) -> dict[str, int]:
        """Return how many volumes a node can attach, by driver; those that say nothing are left out."""
        found = self._known[storage.CSINode].get(("", node))
        drivers = (found.spec.drivers or ()) if isinstance(found, storage.CSINode) else ()
        counts = {one.name: one.allocatable.count for one in drivers if one.allocatable is not None}
        return {name: count for name, count in counts.items() if count is not None}

    @property
    def has_limits(self) -> bool:
        """Whether any node says what it can attach."""
        return bool(self._known[storage.CSINode])

    def volume(self, name: str) -> storage.PersistentVolume | None:
        """Return a volume, None where it is not known."""
        return self._volume(name)

    def _look_up(self, pod: core.Pod, name: str, owner: str) -> wanted.Bound | wanted.Unbound | Refusal:
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

    def _bound(self, claim: core.PersistentVolumeClaim) -> wanted.Bound | wanted.Unbound | Refusal:
        volume = self._volume(claim.spec.volume_name)
        if volume is None:
            name, gone = claim.metadata.name, claim.spec.volume_name
            node = claim.metadata.annotations.get(storage.SELECTED_NODE, "")
            if node and claim.status.phase != _LOST:
                # Kinds are watched apart: a claim can be heard of before the volume that was made for it.
                return wanted.Unbound(name, volumes=(), is_made=True, node=node)
            return Refusal(f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{gone}"')
        labels = volume.metadata.labels
        zones = tuple((key, frozenset(labels[key].split("__"))) for key in _ZONES if key in labels)
        return wanted.Bound(_reach(volume), zones)

    def _unbound(self, claim: core.PersistentVolumeClaim) -> wanted.Unbound | Refusal:
        chosen = self._class(claim.spec.storage_class_name or "")
        if chosen is None or chosen.volume_binding_mode != storage.FIRST_CONSUMER or claim.spec.volume_name:
            return Refusal("pod has unbound immediate PersistentVolumeClaims")
        terms = tuple(
            tuple((one.key, frozenset(one.values)) for one in term.match_label_expressions)
            for term in chosen.allowed_topologies
        )
        node = claim.metadata.annotations.get(storage.SELECTED_NODE, "")
        return wanted.Unbound(
            claim.metadata.name,
            volumes=self._matching(claim),
            is_made=chosen.provisioner not in storage.NO_PROVISIONER,
            topologies=terms,
            node=node,
        )

    def _matching(self, claim: core.PersistentVolumeClaim) -> tuple[wanted.Volume, ...]:
        """Return the volumes that would do for a claim, the smallest first; its own alone where it has one."""
        found = list[tuple[Fraction, str, storage.PersistentVolume]]()
        for one in self._known[storage.PersistentVolume].values():
            if not isinstance(one, storage.PersistentVolume):
                continue
            if _is_of(one, claim):
                return (wanted.Volume(one.metadata.name, _reach(one), is_taken=True),)
            if _would_do(one, claim):
                found.append((_offered(one), one.metadata.name, one))
        ordered = sorted(found, key=lambda each: each[:2])
        return tuple(wanted.Volume(name, _reach(one)) for _, name, one in ordered)


def _reach(volume: storage.PersistentVolume) -> core.NodeAffinity:
    required = volume.spec.node_affinity.required if volume.spec.node_affinity else None
    return core.NodeAffinity(required_during_scheduling_ignored_during_execution=required)


def _asked(claim: core.PersistentVolumeClaim) -> Fraction:
    return _amount(claim.spec.resources.requests.get("storage", 0))


def _offered(volume: storage.PersistentVolume) -> Fraction:
    return _amount(volume.spec.capacity.get("storage", 0))


def _amount(text: str | float) -> Fraction:
    try:
        return quantity.parse_quantity(text)
    except errors.Invalid:
        return Fraction(0)


def _is_of(volume: storage.PersistentVolume, claim: core.PersistentVolumeClaim) -> bool:
    """Return whether a volume was given to a claim, whose controller has not said yet that they are bound."""
    one, about = volume.spec.claim_ref, claim.metadata
    is_named = one is not None and (one.namespace, one.name) == (about.namespace, about.name)
    return is_named and one is not None and one.uid in {"", about.uid}


def _would_do(volume: storage.PersistentVolume, claim: core.PersistentVolumeClaim) -> bool:
    spec, asked = volume.spec, claim.spec
    if spec.claim_ref is not None or volume.metadata.deletion_timestamp is not None:
        return False
    if volume.status.phase not in {"", "Available"} or spec.volume_mode != asked.volume_mode:
        return False
    if spec.storage_class_name != (asked.storage_class_name or "") or not set(asked.access_modes) <= {
        *spec.access_modes
    }:
        return False
    rules = peers.label_rules(asked.selector) if asked.selector is not None else ()
    return selector.matches(rules or (), volume.metadata.labels) and _offered(volume) >= _asked(claim)


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


def given(volume: storage.PersistentVolume, claim: core.PersistentVolumeClaim) -> storage.PersistentVolume:
    """Return a volume that is a claim's from now on."""
    annotations = {**volume.metadata.annotations, storage.BY_CONTROLLER: "yes"}
    about = msgspec.structs.replace(volume.metadata, annotations=annotations)
    return msgspec.structs.replace(
        volume, metadata=about, spec=msgspec.structs.replace(volume.spec, claim_ref=_reference(claim))
    )


def gift(volume: storage.PersistentVolume, claim: core.PersistentVolumeClaim) -> storage.PersistentVolume:
    """Return what is merged into a volume so that it is a claim's, unless it changed meanwhile."""
    about = volume.metadata
    meta = type(about)(
        name=about.name,
        uid=about.uid,
        resource_version=about.resource_version,
        annotations={storage.BY_CONTROLLER: "yes"},
    )
    return storage.PersistentVolume(metadata=meta, spec=storage.VolumeSpec(claim_ref=_reference(claim)))


def _reference(claim: core.PersistentVolumeClaim) -> core.ObjectReference:
    about = claim.metadata
    kind = core.PersistentVolumeClaim
    return core.ObjectReference(
        api_version=kind.API_VERSION, kind=kind.KIND, namespace=about.namespace, name=about.name, uid=about.uid
    )


def on_node(claim: core.PersistentVolumeClaim, node: str) -> core.PersistentVolumeClaim:
    """Return what is merged into a claim so that its volume is made near a node."""
    about = claim.metadata
    annotations: Mapping[str, str] = {storage.SELECTED_NODE: node}
    meta = type(about)(name=about.name, namespace=about.namespace, uid=about.uid, annotations=annotations)
    return core.PersistentVolumeClaim(metadata=meta)
