"""Finds the filters whose verdict a change of a node could alter, so that only pods they refused are tried again.

Pure. A row of `HINTS` a filter of `reference.FILTERS`, and `Filter.is_better` of a constraint's: whether the node got
better for it. A report that changes
nothing a filter reads (a heartbeat), or only makes the node worse (another pod on it), helps no waiting pod.
Source: kubernetes pkg/scheduler, queueing hints (KEP-4247).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from fairlead.plan.schedule import constraint, peers, reference
from fairlead.plan.schedule.reference import FILTERS, NodeInfo, PodInfo

HINTS: Final[Mapping[str, Callable[[NodeInfo, NodeInfo], bool]]] = {
    "NodeReady": lambda before, after: after.is_ready and not before.is_ready,
    "NodeUnschedulable": lambda before, after: before.is_unschedulable and not after.is_unschedulable,
    "TaintToleration": lambda before, after: any(taint not in after.taints for taint in before.taints),
    "NodeAffinity": lambda before, after: before.labels != after.labels,
    "TopologyDomain": lambda before, after: before.labels != after.labels,
    "NodePorts": lambda before, after: bool(before.ports - after.ports),
    "KubeletRejection": lambda before, after: bool(before.rejected.keys() - after.rejected.keys()),
    "NodeResourcesFit": lambda before, after: any(
        after.free(name) > before.free(name) or _is_offered_no_more(before, after, name)
        for name in {**before.allocatable, **after.allocatable}
    ),
}


def _is_offered_no_more(before: NodeInfo, after: NodeInfo, name: str) -> bool:
    """Return whether a node offered a resource and does not any more: a constraint may meet it there now."""
    return after.allocatable.get(name, 0) <= 0 < before.allocatable.get(name, 0)


def is_other(before: NodeInfo | None, after: NodeInfo | None) -> bool:
    """Return whether a node came, went, or differs in more than the pods on it: what was said of the nodes has aged."""
    if before is None or after is None:
        return before is not after
    return (before.is_ready, before.is_unschedulable, before.taints, before.labels, before.allocatable) != (
        after.is_ready,
        after.is_unschedulable,
        after.taints,
        after.labels,
        after.allocatable,
    )


def improved(before: NodeInfo | None, after: NodeInfo | None) -> frozenset[str]:
    """Return the filters that may let a pod pass now and did not before; None: the node was not there, or is gone."""
    if after is None:
        return frozenset()
    if before is None:
        return frozenset((*FILTERS, *constraint.FILTERS))
    more = (name for name, one in constraint.FILTERS.items() if one.is_better(before, after))
    return frozenset((*(name for name, is_better in HINTS.items() if is_better(before, after)), *more))


def may_help(need: PodInfo, before: NodeInfo | None, after: NodeInfo | None) -> bool:
    """Return whether a need may fit now: on the node, or, where other pods matter, on any for what is on this one."""
    if after is not None and improved(before, after) and reference.first_refusal(need, after) is None:
        return True
    return need.peer.is_concerned and _counted(need, before) != _counted(need, after)


def _counted(need: PodInfo, node: NodeInfo | None) -> peers.Tally | None:
    return None if node is None else reference.tally(need, node)
