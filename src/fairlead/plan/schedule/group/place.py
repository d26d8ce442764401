"""Finds the network domains in which a further pod of a group or sub-group may run, given its running pods. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairlead.plan.schedule.group import domain
from fairlead.plan.schedule.group.gang import Gang, Gangs
from fairlead.plan.schedule.reference import NodeInfo, PodInfo
from fairlead.wire.kubernetes import core


class Places:
    """What groups ask of the network, over the nodes that there are."""

    def __init__(self, gangs: Gangs, levels: domain.Levels, nodes: Mapping[str, NodeInfo]) -> None:
        """Take the groups, the levels of the network, and the nodes by name, as they are at each question."""
        self._gangs, self.levels, self._nodes = gangs, levels, nodes

    def asked(self, pod: core.Pod, part: Gang | None = None) -> domain.Asked:
        """Return what a pod or its PodGroup says of its place in the network; or what a sub-group of that says."""
        if part is not None and part.is_part:
            return domain.asked_by(part.place, self.levels)
        return domain.request_of(pod, self._gangs.object_of(pod.metadata.uid), self.levels)

    def narrowed(self, pod: core.Pod, need: PodInfo) -> PodInfo:
        """Return a need that only the domains meet in which its group and sub-groups run, where they require one."""
        gang = self._gangs.of(pod.metadata.uid)
        if gang is None and not pod.metadata.annotations:
            return need
        for one in (None,) if gang is None else gang.chain(pod.metadata.uid):
            if required := self.asked(pod, one).required:
                need = self._beside(pod, need, () if one is None else one.placed.values(), required)
        return need

    def _beside(self, pod: core.Pod, need: PodInfo, others: Iterable[core.Pod], required: str) -> PodInfo:
        """Return a need that only the domain of a level meets in which others run."""
        of = domain.keys(required, self.levels)
        nodes = (self._nodes.get(one.spec.node_name) for one in others if one.metadata.uid != pod.metadata.uid)
        there = (domain.domain_of(node.labels, of) for node in nodes if node is not None)
        return domain.within(need, next((one for one in there if one is not None), domain.anywhere(of)))
