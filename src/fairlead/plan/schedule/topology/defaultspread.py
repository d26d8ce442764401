"""Spreads pods of Services and ReplicaSets that say nothing of it, as kube-scheduler does by default. Pure.

A pod without `topologySpreadConstraints` that a Service selects, or that a ReplicaSet, StatefulSet or
ReplicationController owns, rather goes where few of its like are, by node and by zone. What its like is the selectors
of all of these say together. Only scores know it, no node is refused, and a node without the label of a zone is judged
by the pods on it alone.
Source: kubernetes pkg/scheduler/framework/plugins/podtopologyspread, systemDefaultConstraints; helper DefaultSelector.
"""

from __future__ import annotations

from typing import Final

from fairlead.plan.schedule import peers
from fairlead.wire.kubernetes import core, meta, selector
from fairlead.wire.kubernetes.scheduling import selecting

Object = selecting.Service | selecting.ReplicationController | selecting.ReplicaSet | selecting.StatefulSet
SKEWS: Final = {"kubernetes.io/hostname": 3, "topology.kubernetes.io/zone": 5}
_OWNERS: Final = {
    one.KIND: one for one in (selecting.ReplicationController, selecting.ReplicaSet, selecting.StatefulSet)
}


class Selectors:
    """What selects pods, by kind, namespace and name."""

    def __init__(self) -> None:
        """Begin without any."""
        self._known: dict[type[Object], dict[str, dict[str, Object]]] = {kind: {} for kind in selecting.KINDS}

    def forget(self, kind: type[Object]) -> None:
        """Reset one kind: a list follows."""
        self._known[kind].clear()

    def note(self, item: Object, *, is_gone: bool = False) -> None:
        """Take in what the watch says."""
        there = self._known[type(item)].setdefault(item.metadata.namespace, {})
        there.pop(item.metadata.name, None)
        if not is_gone:
            there[item.metadata.name] = item

    def spread(self, pod: core.Pod) -> tuple[peers.Spread, ...]:
        """Return the constraints that a pod has by default; none where nothing selects it, or it has its own."""
        rules = () if pod.spec.topology_spread_constraints else self._rules(pod)
        if not rules:
            return ()
        return tuple(
            peers.Spread(
                topology_key=key,
                rules=rules,
                max_skew=skew,
                min_domains=1,
                is_required=False,
                minds_affinity=True,
                minds_taints=False,
                is_default=True,
            )
            for key, skew in SKEWS.items()
        )

    def _rules(self, pod: core.Pod) -> tuple[selector.Requirement, ...]:
        space, labels = pod.metadata.namespace, pod.metadata.labels
        merged, more = dict[str, str](), meta.LabelSelector()
        for one in self._known[selecting.Service].get(space, {}).values():
            chosen = one.spec.selector
            is_about = isinstance(one, selecting.Service) and chosen is not None
            if is_about and isinstance(chosen, dict) and chosen.items() <= labels.items():
                merged |= chosen
        owner = next((one for one in pod.metadata.owner_references if one.controller), None)
        kind = _OWNERS.get(owner.kind) if owner is not None else None
        if owner is not None and kind is not None and owner.api_version == kind.API_VERSION:
            found = self._known[kind].get(space, {}).get(owner.name)
            if isinstance(found, selecting.ReplicationController):
                merged |= found.spec.selector or {}
            elif found is not None and not isinstance(found, selecting.Service):
                more = found.spec.selector
        mine = peers.label_rules(meta.LabelSelector(match_labels=merged)) or ()
        return (*mine, *(peers.label_rules(more) or ()))
