"""Places a pod: filters say why a node cannot, scores say which of the rest is best. Pure and deterministic.

Filters are a table of small functions from (need, node) to reasons, worded as kube-scheduler words them. The score
packs GPUs: pods go to the node whose GPUs are most taken, so that whole nodes stay free for large pods; among equal
nodes the one with the most free cpu and memory wins, then the name. Later policies are rows of `POLICIES`. What the pod
would rather have is weighed against that, where it tells the nodes apart: rows of `SCORES`, with kube-scheduler's
weights and its scale from 0 to 100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from fairlead.plan.pod import admission, affinity
from fairlead.wire.kubernetes import core, meta, quantity, selector


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node as the scheduler sees it: what it offers and what is taken."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[core.Taint, ...] = ()
    is_ready: bool = True
    not_ready_reason: str = ""
    is_unschedulable: bool = False
    allocatable: Mapping[str, Fraction] = field(default_factory=dict)
    taken: Mapping[str, Fraction] = field(default_factory=dict)

    def free(self, resource: str) -> Fraction:
        """Return what is left of a resource; 0 where the node does not offer it."""
        return self.allocatable.get(resource, Fraction(0)) - self.taken.get(resource, Fraction(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInfo:
    """A pod as the scheduler sees it."""

    requests: Mapping[str, Fraction]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: core.NodeAffinity = field(default_factory=core.NodeAffinity)
    tolerations: tuple[core.Toleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    """What was found for one node."""

    node: str
    why_not: tuple[str, ...] = ()
    first: tuple[str, ...] = ()
    """Of `why_not` what the first filter said that refused the node."""
    score: float | None = None
    """0 to 100; None where the node was filtered out."""

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against the node."""
        return not self.why_not


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The node chosen, or None, with the verdict on every node."""

    node: str | None
    verdicts: tuple[NodeResult, ...]

    @property
    def message(self) -> str:
        """One line as kube-scheduler writes it: it asks no further filter about a node that one has refused."""
        if self.node is not None:
            return f"assigned to {self.node}"
        counts: dict[str, int] = {}
        for verdict in self.verdicts:
            for reason in verdict.first:
                counts[reason] = counts.get(reason, 0) + 1
        reasons = ", ".join(sorted(f"{number} {reason}" for reason, number in counts.items()))
        return f"0/{len(self.verdicts)} nodes are available: {reasons or 'no nodes are known'}."


def pod_info(pod: core.Pod) -> PodInfo:
    """Return what a pod asks of a node; every pod takes one of the node's `pods`."""
    requests = {**admission.effective_requests(pod.spec), "pods": Fraction(1)}
    return PodInfo(
        requests=requests,
        node_selector=pod.spec.node_selector,
        affinity=affinity.of_pod(pod.spec),
        tolerations=pod.spec.tolerations,
    )


def node_info(node: core.Node, pods: tuple[core.Pod, ...]) -> NodeInfo:
    """Return a node with the requests of the pods bound to it; ended pods take nothing."""
    taken: dict[str, Fraction] = {}
    for pod in pods:
        if pod.status.phase in core.ENDED_PHASES:
            continue
        for resource, value in pod_info(pod).requests.items():
            taken[resource] = taken.get(resource, Fraction(0)) + value
    ready = meta.find_condition(node.status.conditions, "Ready")
    return NodeInfo(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=node.spec.taints,
        is_ready=ready is not None and ready.status == "True",
        not_ready_reason=ready.reason if ready else "",
        is_unschedulable=node.spec.unschedulable,
        allocatable={name: quantity.parse_quantity(text) for name, text in node.status.allocatable.items()},
        taken=taken,
    )


_NOT_READY: Final = core.Taint(key="node.kubernetes.io/not-ready")
_UNSCHEDULABLE: Final = core.Taint(key="node.kubernetes.io/unschedulable")


def _ready(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    # A cluster says so with a taint, which some pods bear; on one machine nobody sets it.
    is_borne = node.is_ready or selector.tolerates(need.tolerations, _NOT_READY)
    return () if is_borne else ("node(s) were not ready",)


def _schedulable(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    is_borne = not node.is_unschedulable or selector.tolerates(need.tolerations, _UNSCHEDULABLE)
    return () if is_borne else ("node(s) were unschedulable",)


def _affinity(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    agrees = affinity.is_allowed(need.node_selector, need.affinity, name=node.name, labels=node.labels)
    return () if agrees else ("node(s) didn't match Pod's node affinity/selector",)


def _taints(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    taint = selector.find_untolerated(node.taints, need.tolerations)
    return () if taint is None else (f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}",)


def _resources(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    short = [name for name, value in sorted(need.requests.items()) if value > node.free(name)]
    return tuple("Too many pods" if name == "pods" else f"Insufficient {name}" for name in short)


FILTERS: Final[Mapping[str, Callable[[PodInfo, NodeInfo], tuple[str, ...]]]] = {
    "NodeReady": _ready,
    "NodeUnschedulable": _schedulable,
    "TaintToleration": _taints,
    "NodeAffinity": _affinity,
    "NodeResourcesFit": _resources,
}
"""In kube-scheduler's order."""


def _share(need: PodInfo, node: NodeInfo, resource: str) -> Fraction:
    """Return the taken share of a resource once the pod is there, 0 to 1."""
    offered = node.allocatable.get(resource, Fraction(0))
    if offered <= 0:
        return Fraction(0)
    return (node.taken.get(resource, Fraction(0)) + need.requests.get(resource, Fraction(0))) / offered


def score_packed(need: PodInfo, node: NodeInfo) -> float:
    """Score 0 to 100: GPUs packed (most taken first, nine parts), cpu and memory spread (one part).

    A pod without devices prefers nodes without them, so that cpu work does not strand GPUs.
    """
    devices = [name for name in need.requests if admission.is_extended(name)]
    spread = sum(1 - _share(need, node, name) for name in ("cpu", "memory")) / 2
    if devices:
        packed = sum((_share(need, node, name) for name in devices), Fraction(0)) / len(devices)
    else:
        packed = Fraction(
            0 if any(admission.is_extended(name) and value > 0 for name, value in node.allocatable.items()) else 1
        )
    return round(float(90 * packed + 10 * spread), 2)


POLICIES: Final[Mapping[str, Callable[[PodInfo, NodeInfo], float]]] = {"packed": score_packed}


def _preferred(need: PodInfo, node: NodeInfo) -> int:
    return affinity.weight(need.affinity, name=node.name, labels=node.labels)


def _avoided(need: PodInfo, node: NodeInfo) -> int:
    """Return how many taints speak against the node without forbidding it, negative: the fewer the better."""
    against = [taint for taint in node.taints if taint.effect == "PreferNoSchedule"]
    return -sum(not selector.tolerates(need.tolerations, taint) for taint in against)


SCORES: Final[Mapping[str, tuple[int, Callable[[PodInfo, NodeInfo], int]]]] = {
    "NodeAffinity": (2, _preferred),
    "TaintToleration": (3, _avoided),
}
"""Weight beside the policy's 1, and what a node is worth to the pod. Source: kube-scheduler's default plugins."""


def place(need: PodInfo, nodes: Iterable[NodeInfo], *, policy: str = "packed") -> Decision:
    """Choose a node for one pod.

    Args:    nodes: all nodes, any order.   policy: a row of `POLICIES`.
    Returns: the best node (ties: first by name) and a verdict on every node, in name order.
    """
    ordered = sorted(nodes, key=lambda node: node.name)
    refusals = {node.name: [why for check in FILTERS.values() if (why := check(need, node))] for node in ordered}
    scores = _scores(need, [node for node in ordered if not refusals[node.name]], POLICIES[policy])
    verdicts = tuple(
        NodeResult(
            node=name,
            why_not=tuple(why for refusal in found for why in refusal),
            first=found[0] if found else (),
            score=scores.get(name),
        )
        for name, found in refusals.items()
    )
    best = max(scores, key=lambda name: scores[name], default=None)
    return Decision(node=best, verdicts=verdicts)


def _scores(need: PodInfo, nodes: Sequence[NodeInfo], scorer: Callable[[PodInfo, NodeInfo], float]) -> dict[str, float]:
    """Return the nodes' scores, 0 to 100: the policy's, and every preference that tells them apart, by weight."""
    parts = [(1, [scorer(need, node) for node in nodes])]
    for weight, worth in SCORES.values():
        values = [worth(need, node) for node in nodes]
        if len(set(values)) > 1:
            parts.append((weight, _scaled(values)))
    whole = sum(weight for weight, _ in parts)
    return {
        node.name: round(sum(weight * values[at] for weight, values in parts) / whole, 2)
        for at, node in enumerate(nodes)
    }


def _scaled(values: Sequence[int]) -> list[float]:
    """Return shares of the largest, or, of values below zero, what is left of the smallest: 0 to 100."""
    most, least = max(values), min(values)
    return [100 * value / most if most > 0 else 100 * (1 - value / least) for value in values]
