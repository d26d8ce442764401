"""Says on which nodes a pod's claims let it run: bound volumes by their node affinity, others by where one may be made.

Pure. `Wanted` is what is left of a pod's claims once they were looked up (`claims.Claims`); `refusal` judges one node.
Source: kubernetes pkg/scheduler/framework/plugins volumebinding, volumezone; their words are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.pod import affinity
from fairlead.wire.kubernetes import core

FILTER: Final = "VolumeBinding"
_ELSEWHERE: Final = "node(s) didn't match PersistentVolume's node affinity"
_ZONE: Final = "node(s) had no available volume zone"
_NOWHERE: Final = "node(s) didn't find available persistent volumes to bind"

Labels = tuple[tuple[str, frozenset[str]], ...]
"""Keys, each with the values of which a node must have one."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A volume that is there."""

    affinity: core.NodeAffinity
    zones: Labels = ()
    """Of the volume's own labels; a node without such a label is not judged by it."""


@dataclass(frozen=True, slots=True)
class Provisioned:
    """A claim whose volume is made when its first pod has a node."""

    claim: str
    topologies: tuple[Labels, ...] = ()
    """Of which a node must meet one; none: every node will do."""
    node: str = ""
    """The node that was chosen for it before; empty: none."""


Wanted = tuple[Bound | Provisioned, ...]


def refusal(wanted: Wanted, *, name: str, labels: Mapping[str, str]) -> tuple[str, ...]:
    """Return why a node is too far from a pod's volumes; nothing: it is not."""
    found = dict[str, None]()
    for one in wanted:
        if why := _of_bound(one, name, labels) if isinstance(one, Bound) else _of_claim(one, name, labels):
            found[why] = None
    return tuple(found)


def _of_bound(one: Bound, name: str, labels: Mapping[str, str]) -> str:
    if not affinity.is_allowed({}, one.affinity, name=name, labels=labels):
        return _ELSEWHERE
    return _ZONE if any(key in labels and labels[key] not in values for key, values in one.zones) else ""


def _of_claim(one: Provisioned, name: str, labels: Mapping[str, str]) -> str:
    if one.node:
        return "" if one.node == name else _NOWHERE
    is_met = not one.topologies or any(
        all(labels.get(key) in values for key, values in term) for term in one.topologies
    )
    return "" if is_met else _NOWHERE


def unbound(wanted: Wanted) -> tuple[Provisioned, ...]:
    """Return the claims that a node has to be chosen for before the pod is bound."""
    return tuple(one for one in wanted if isinstance(one, Provisioned))
