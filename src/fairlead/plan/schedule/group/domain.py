"""Says in which part of the network a group's pods may be placed: racks, blocks and zones, by labels of nodes. Pure.

A level is a label, `cloud.provider.com/topology-rack`. A domain of it is what the nodes have in common that have the
same values of it and of every wider level (`control.topology_levels`), since racks of two blocks may have one name; a
level that is not listed counts alone. A group requires a level: all of its pods in one domain. Or it prefers one: in
one domain of it, else of the next wider level, else anywhere.

`candidates` counts with the filters of every placement how many pods each node takes, and adds up by domain. For pods
that ask alike and have no rules on other pods the count is exact; else it is an upper bound, and a domain that takes
fewer is left for the next. The tightest domain comes first, so that wide ones stay free for larger groups.

Source: Kueue, Topology Aware Scheduling (BestFit); k8s.io/api/scheduling/v1beta1, PodGroupSchedulingConstraints; KAI
pkg/apis/scheduling/v2alpha2, TopologyConstraint; volcano.sh/apis scheduling/v1beta1, NetworkTopologySpec.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.group import subgroup
from fairlead.plan.schedule.reference import Domain, NodeInfo, PodInfo
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.scheduling.podgroup import PodGroup, TopologyConstraint

REQUIRED: Final = ("kueue.x-k8s.io/podset-required-topology", "kai.scheduler/topology-required-placement")
PREFERRED: Final = ("kueue.x-k8s.io/podset-preferred-topology", "kai.scheduler/topology-preferred-placement")
ANNOTATIONS: Final = frozenset((*REQUIRED, *PREFERRED))
HOST: Final = "kubernetes.io/hostname"
MOST: Final = 8
"""Domains that are tried for one group, the tightest first."""

Levels = tuple[str, ...]
"""Labels, widest first."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a group says of its place in the network; "": nothing."""

    required: str = ""
    preferred: str = ""


def levels_of(text: str) -> Levels:
    """Return the levels of a setting."""
    return tuple(dict.fromkeys(one for one in map(str.strip, text.split(",")) if one))


def request_of(pod: core.Pod, group: PodGroup | None, levels: Levels) -> Asked:
    """Return what a pod asks for, and where it says nothing, what its PodGroup does."""
    told = pod.metadata.annotations
    required, preferred = (next((told[key] for key in keys if told.get(key)), "") for keys in (REQUIRED, PREFERRED))
    if required or preferred or group is None:
        return Asked(required, preferred)
    spec = group.spec
    if spec.scheduling_constraints is not None and spec.scheduling_constraints.topology:
        return Asked(required=spec.scheduling_constraints.topology[0].key)
    return asked_by(spec.topology_constraint or spec.network_topology, levels)


def asked_by(place: subgroup.Place, levels: Levels) -> Asked:
    """Return what a PodGroup or one of its sub-groups asks for, as KAI or Volcano writes it."""
    if isinstance(place, TopologyConstraint):
        return Asked(place.required_topology_level, place.preferred_topology_level)
    tiers = [one for one in reversed(levels) if one != HOST]
    if place is not None and 1 <= (place.highest_tier_allowed or 0) <= len(tiers):
        level = tiers[(place.highest_tier_allowed or 0) - 1]
        return Asked(preferred=level) if place.mode == "soft" else Asked(required=level)
    return Asked()


def keys(level: str, levels: Levels) -> Levels:
    """Return the labels whose values make a domain of a level: itself, after every wider one."""
    return levels[: levels.index(level) + 1] if level in levels else (level,)


def ways(asked: Asked, levels: Levels) -> tuple[Levels, ...]:
    """Return the labels that make a domain, of each way in which a group may be placed, best first; (): anywhere."""
    found = list[Levels]()
    if asked.preferred:
        known = asked.preferred in levels
        wider = levels[levels.index(asked.preferred) :: -1] if known else (asked.preferred,)
        found += [keys(one, levels) for one in wider]
    least = keys(asked.required, levels) if asked.required else ()
    return tuple(dict.fromkeys((*((*least, *(key for key in one if key not in least)) for one in found), least)))


def domain_of(labels: Mapping[str, str], of: Levels) -> Domain | None:
    """Return the domain of a node; None: it lacks a label."""
    return tuple((key, labels[key]) for key in of) if all(key in labels for key in of) else None


def anywhere(of: Levels) -> Domain:
    """Return what stands for every domain of a level: a node must have its labels, whatever their values."""
    return tuple((key, "") for key in of)


def slots(need: PodInfo, node: NodeInfo) -> int:
    """Return how many pods that ask for this a node takes, at most."""
    if reference.first_refusal(need, node) is not None:
        return 0
    if need.ports:
        return 1
    met = need.met_on(node) if need.asks else ()
    counted = ((name, value) for name, value in need.requests.items() if value > 0 and name not in met)
    return min((node.free(name) // value for name, value in counted), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Domains of one level for one group."""

    of: Levels
    fitting: tuple[Domain, ...]
    """That take all of its pods, the tightest first."""
    best: tuple[int, Domain]
    """How many pods the domain takes that takes most of them, and which; (): no node has the labels."""

    @property
    def words(self) -> str:
        """What is said of the domain that takes most."""
        if not self.best[1]:
            return f"no node has {' and '.join(self.of)}"
        return f"the best, {shown(self.best[1])}, has room for {self.best[0]}"


def shown(domain: Domain) -> str:
    """Return a domain as people write it: the value of its narrowest label."""
    return domain[-1][1] if domain else ""


def candidates(needs: Sequence[PodInfo], nodes: Iterable[NodeInfo], of: Levels) -> Candidates:
    """Count how many of some pods each domain takes."""
    asked = Counter(need.key() for need in needs)
    kinds = {need.key(): need for need in needs}
    room: dict[Domain, Counter[tuple[object, ...]]] = {}
    for node in nodes:
        if (domain := domain_of(node.labels, of)) is not None:
            there = room.setdefault(domain, Counter())
            for key, need in kinds.items():
                there[key] += slots(need, node)
    taken = {domain: sum(min(there[key], count) for key, count in asked.items()) for domain, there in room.items()}
    fitting = sorted((room[domain].total(), domain) for domain, count in taken.items() if count == len(needs))
    best = max(((count, domain) for domain, count in taken.items()), key=lambda one: (one[0], one[1]), default=(0, ()))
    return Candidates(of=of, fitting=tuple(domain for _, domain in fitting), best=best)


def within(need: PodInfo, domain: Domain) -> PodInfo:
    """Return a need that only the nodes of a domain meet, beside those that it names already."""
    known = dict(need.domain)
    fixed = {**known, **{key: value or known.get(key, "") for key, value in domain}}
    return dataclasses.replace(need, domain=tuple(fixed.items())) if domain else need


def on_node(need: PodInfo, name: str) -> PodInfo:
    """Return a need that only one node meets, if it meets it without that."""
    only = core.NodeSelectorRequirement(key="metadata.name", operator="In", values=(name,))
    required = need.affinity.required_during_scheduling_ignored_during_execution
    there: tuple[core.NodeSelectorTerm, ...] = (core.NodeSelectorTerm(match_fields=(only,)),)
    if required is not None:  # a term without conditions takes no node, and must not with this one
        terms = (one for one in required.node_selector_terms if one.match_expressions or one.match_fields)
        there = tuple(msgspec.structs.replace(one, match_fields=(*one.match_fields, only)) for one in terms)
    narrowed = core.NodeSelector(node_selector_terms=there)
    affinity = msgspec.structs.replace(need.affinity, required_during_scheduling_ignored_during_execution=narrowed)
    return dataclasses.replace(need, affinity=affinity)
