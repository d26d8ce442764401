"""Finds the nodes on which a pod's claims let it run: those that reach its bound volumes, or where a volume can be had.

Pure. `Wanted` is what is left of a pod's claims once they were looked up (`claims.Claims`); `refusal` judges one node.
A claim that waits for its first pod takes a volume that is there already and that the node reaches, the smallest that
will do; where none is, one is made, if its class has a provisioner. Two claims of one pod never take the same volume:
the claim that asks for least chooses first.
Source: kubernetes pkg/scheduler/framework/plugins volumebinding, volumezone, nodevolumelimits; component-helpers
storage/volume FindMatchingVolume; their words are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.pod import affinity
from fairlead.wire.kubernetes import core

FILTER: Final = "VolumeBinding"
LIMITS: Final = "NodeVolumeLimits"
_ELSEWHERE: Final = "node(s) didn't match PersistentVolume's node affinity"
_ZONE: Final = "node(s) had no available volume zone"
_NOWHERE: Final = "node(s) didn't find available persistent volumes to bind"
_TOO_MANY: Final = "node(s) exceed max volume count"

Labels = tuple[tuple[str, frozenset[str]], ...]
"""Keys, each with the values of which a node must have one."""
Attached = frozenset[tuple[str, str]]
"""Volumes that count against what a node can attach: driver and handle."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A volume that is bound to the claim."""

    affinity: core.NodeAffinity
    zones: Labels = ()
    """Of the volume's own labels; a node without such a label is not judged by it."""


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume that a claim could take."""

    name: str
    affinity: core.NodeAffinity
    is_taken: bool = False
    """It is the claim's already, and their binding is under way."""


@dataclass(frozen=True, slots=True)
class Unbound:
    """A claim that gets its volume when its first pod has a node."""

    claim: str
    volumes: tuple[Volume, ...] = ()
    """That would do, the smallest first."""
    is_made: bool = True
    """Whether its class has a provisioner that makes one."""
    topologies: tuple[Labels, ...] = ()
    """Of which a node must meet one for a volume to be made; none: every node will do."""
    node: str = ""
    """The node that was chosen for it before; empty: none."""


Wanted = tuple[Bound | Unbound, ...]
"""Of claims without a volume, those that ask for least first."""


def refusal(wanted: Wanted, *, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return why a node is too far from a pod's volumes; nothing: it is not."""
    found = dict[str, None]()
    for one in wanted:
        if isinstance(one, Bound) and (why := _of_bound(one, name, labels)):
            found[why] = None
    if chosen(wanted, name=name, labels=labels) is None:
        found[_NOWHERE] = None
    return tuple(found)


def _of_bound(one: Bound, name: str, labels: Mapping[str, str]) -> str:
    if not affinity.is_allowed({}, one.affinity, name=name, labels=labels):
        return _ELSEWHERE
    return _ZONE if any(key in labels and labels[key] not in values for key, values in one.zones) else ""


def chosen(wanted: Wanted, *, name: str, labels: Mapping[str, str]) -> dict[str, str] | None:
    """Return by claim the volume that it takes on a node, "" where one is made; None: a claim finds none there."""
    found = dict[str, str]()
    for one in wanted:
        if not isinstance(one, Unbound):
            continue
        if one.node not in {"", name}:
            return None
        near = (each.name for each in one.volumes if affinity.is_allowed({}, each.affinity, name=name, labels=labels))
        volume = next((each for each in near if each not in found.values()), "")
        if not volume and not _is_made(one, labels):
            return None
        found[one.claim] = volume
    return found


def _is_made(one: Unbound, labels: Mapping[str, str]) -> bool:
    if not one.is_made or any(each.is_taken for each in one.volumes):
        return False
    return not one.topologies or any(all(labels.get(key) in values for key, values in term) for term in one.topologies)


def unbound(wanted: Wanted) -> tuple[Unbound, ...]:
    """Return the claims that a node has to be chosen for before the pod is bound."""
    return tuple(one for one in wanted if isinstance(one, Unbound))


def too_many(new: Attached, there: Attached, limits: Mapping[str, int]) -> tuple[str, ...]:
    """Return why a node cannot attach a pod's volumes too; nothing: it can. Args: limits: by driver, of the node."""
    for driver, limit in limits.items():
        more = {one for one in new - there if one[0] == driver}
        if more and len(more) + sum(one[0] == driver for one in there) > limit:
            return (_TOO_MANY,)
    return ()
