"""Says why a pod waits, from the cluster's nodes and pods alone, whichever scheduler it waits for. Pure.

The nodes are judged as the scheduler judges them (`plan.schedule`): once as they are, and once with nothing on them.
What would not fit on empty nodes never will; what would is waiting for its turn; what fits now waits for its scheduler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from fairlead.plan.pod import personwords
from fairlead.plan.reservation import profile
from fairlead.plan.schedule import constraints, reference, rejection, rules
from fairlead.plan.schedule.claim import implicit
from fairlead.plan.schedule.fabric import guestdriver
from fairlead.plan.schedule.group import membership
from fairlead.plan.schedule.summary import Reason
from fairlead.plan.schedule.workloads import TENANCY_NOT_READY
from fairlead.wire.kubernetes import core, meta

OVERLOOKED_S: Final = 30.0
"""After which a pod that fits was overlooked: a scheduler tries it within 10 s, and looks for such pods every 10 s."""
ROOM: Final = "has room for it"
"""What is said of a node that takes a pod which waits all the same."""
_BY_LABELS: Final = "its rules select namespaces by labels, and its scheduler has not said yet what keeps it"


def why(
    pod: core.Pod,
    nodes: Sequence[core.Node],
    pods: Sequence[core.Pod],
    *,
    ours: str,
    full: Sequence[reference.NodeInfo] | None = None,
) -> str:
    """Return one sentence on why a pod without a node has none.

    Args:   ours: the name of the scheduler that is ours.   full: the nodes with those pods, where the caller has them.
    Raises: Invalid: a quantity of a pod or node cannot be read.
    """
    if gates := ", ".join(gate.name for gate in pod.spec.scheduling_gates):
        return f"its scheduling gates hold it: {gates}"
    if pod.spec.scheduler_name == ours and (refusal := rules.refusal(pod.spec, knows_namespaces=True)):
        return refusal
    if pod.spec.scheduler_name == ours and rules.refusal(pod.spec):
        found = meta.find_condition(pod.status.conditions, "PodScheduled")
        return found.message if found is not None and found.message else _BY_LABELS
    if not nodes:
        return "there are no nodes"
    need = reference.pod_info(pod)
    empty = [reference.offered(node) for node in nodes]
    ever = reference.place(dataclasses.replace(need, peer=need.peer.alone()), empty)
    if not ever.fitting:
        return f"it will never fit as things are: {_never(need, empty, ever.reasons)}"
    return _now(pod, need, _full_nodes(nodes, pods) if full is None else full)


def is_overlooked(pod: core.Pod, why: str, now: float) -> bool:
    """Return whether a pod has been refused for `OVERLOOKED_S` although a node has room for it, by what `why` says.

    A pod of a group, or one that its queue or its own claims hold back, has other reasons to wait.

    Args: now: Unix seconds.
    """
    found = meta.find_condition(pod.status.conditions, "PodScheduled")
    if found is None or found.reason != "Unschedulable" or membership.of_pod(pod) is not None:
        return False
    since = meta.timestamp(found.last_transition_time or None)
    return ROOM in why and since is not None and now - since > OVERLOOKED_S


def said(pod: core.Pod) -> str:
    """Return what the scheduler said of what nodes and pods do not show: refusals, claims, tenancies. Else ""."""
    found = meta.find_condition(pod.status.conditions, "PodScheduled")
    if found is None or found.status != "False":
        return ""
    if found.reason == TENANCY_NOT_READY:
        return found.message
    is_told = any(one in found.message for one in (rejection.WORDS, implicit.NAME, profile.WORDS, guestdriver.WORDS))
    return found.message if is_told or constraints.concern(pod) else ""


def _full_nodes(nodes: Sequence[core.Node], pods: Sequence[core.Pod]) -> list[reference.NodeInfo]:
    there: dict[str, list[core.Pod]] = {}
    for one in pods:
        there.setdefault(one.spec.node_name, []).append(one)
    return [reference.node_info(node, there.get(node.metadata.name, ())) for node in nodes]


def _now(pod: core.Pod, need: reference.PodInfo, full: Sequence[reference.NodeInfo]) -> str:
    """Return what keeps a pod that may run on some nodes off each of them, or that nothing does."""
    if told := said(pod):
        return told
    fitting = [one for one in full if reference.first_refusal(need, reference.occupied(one, ())) is None]
    names = {one.name for one in fitting}
    now = reference.place(need, fitting, beside=[one for one in full if one.name not in names])
    if not now.fitting:
        if any(reference.first_refusal(need, node) is None for node in fitting):
            return f"other pods keep it off every node that has room: {_full(now.reasons)}"
        return f"every node that it could run on is full: {_full(now.reasons)}"
    return f'node {now.node} {ROOM}: scheduler "{pod.spec.scheduler_name}" has not placed it'


def _never(need: reference.PodInfo, nodes: Sequence[reference.NodeInfo], reasons: Sequence[Reason]) -> str:
    """Return what an empty cluster lacks: the amount that no node has, or what keeps the pod off each."""
    met = frozenset[str]().union(*(need.met_on(node) for node in nodes)) if need.asks else ()
    for name, asked in need.requests.items():
        if name in met:
            continue
        largest = max(node.allocatable.get(name, 0) for node in nodes)
        if asked > largest:
            return f"{_amount(asked)} {name} asked, the largest node has {_amount(largest)}"
    return _full(reasons)


def _full(reasons: Sequence[Reason]) -> str:
    ordered = sorted(reasons, key=lambda one: (-one.nodes, one.why))
    return ", ".join(f"{personwords.reason(one.why)} ({one.nodes}, such as {one.example})" for one in ordered[:3])


def _amount(thousandths: int) -> str:
    return f"{thousandths / reference.UNIT:.12g}"
