"""Where a pod goes: filters say why a node cannot, scores say which of the rest is best. Pure and deterministic.

Filters are a table of small functions from (need, node) to a reason or None, worded as kube-scheduler words them.
The score packs GPUs: pods go to the node whose GPUs are most taken, so that whole nodes stay free for large pods; among
equal nodes the one with the most free cpu and memory wins, then the name. Later policies are rows of `POLICIES`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from fairlead.plan import admission
from fairlead.wire.kubernetes import core, quantity, selector


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
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
class Need:
    """A pod as the scheduler sees it."""

    requests: Mapping[str, Fraction]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[core.Toleration, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What was found for one node."""

    node: str
    why_not: tuple[str, ...] = ()
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
    verdicts: tuple[Verdict, ...]

    @property
    def message(self) -> str:
        """One line as kube-scheduler writes it."""
        if self.node is not None:
            return f"assigned to {self.node}"
        counts: dict[str, int] = {}
        for verdict in self.verdicts:
            for reason in verdict.why_not:
                counts[reason] = counts.get(reason, 0) + 1
        reasons = ", ".join(f"{number} {reason}" for reason, number in sorted(counts.items()))
        return f"0/{len(self.verdicts)} nodes are available: {reasons or 'no nodes are known'}."


def need_of(pod: core.Pod) -> Need:
    """Return what a pod asks of a node; every pod takes one of the node's `pods`."""
    requests = {**admission.effective_requests(pod.spec), "pods": Fraction(1)}
    return Need(requests=requests, node_selector=pod.spec.node_selector, tolerations=pod.spec.tolerations)


def view_of(node: core.Node, pods: tuple[core.Pod, ...]) -> NodeView:
    """Return a node with the requests of the pods bound to it; ended pods take nothing."""
    taken: dict[str, Fraction] = {}
    for pod in pods:
        if pod.status.phase in {"Succeeded", "Failed"}:
            continue
        for resource, value in need_of(pod).requests.items():
            taken[resource] = taken.get(resource, Fraction(0)) + value
    ready = next((item for item in node.status.conditions if item.type == "Ready"), None)
    return NodeView(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=node.spec.taints,
        is_ready=ready is not None and ready.status == "True",
        not_ready_reason=ready.reason if ready else "",
        is_unschedulable=node.spec.unschedulable,
        allocatable={name: quantity.parse_quantity(text) for name, text in node.status.allocatable.items()},
        taken=taken,
    )


def _ready(_: Need, node: NodeView) -> tuple[str, ...]:
    return () if node.is_ready else ("node(s) were not ready",)


def _schedulable(_: Need, node: NodeView) -> tuple[str, ...]:
    return ("node(s) were unschedulable",) if node.is_unschedulable else ()


def _selector(need: Need, node: NodeView) -> tuple[str, ...]:
    agrees = all(node.labels.get(key) == value for key, value in need.node_selector.items())
    return () if agrees else ("node(s) didn't match Pod's node affinity/selector",)


def _taints(need: Need, node: NodeView) -> tuple[str, ...]:
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not selector.tolerates(need.tolerations, taint):
            return (f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}",)
    return ()


def _resources(need: Need, node: NodeView) -> tuple[str, ...]:
    short = [name for name, value in sorted(need.requests.items()) if value > node.free(name)]
    return tuple("Too many pods" if name == "pods" else f"Insufficient {name}" for name in short)


FILTERS: Final[Mapping[str, Callable[[Need, NodeView], tuple[str, ...]]]] = {
    "NodeReady": _ready,
    "NodeUnschedulable": _schedulable,
    "NodeAffinity": _selector,
    "TaintToleration": _taints,
    "NodeResourcesFit": _resources,
}


def _share(need: Need, node: NodeView, resource: str) -> Fraction:
    """Return the taken share of a resource once the pod is there, 0 to 1."""
    offered = node.allocatable.get(resource, Fraction(0))
    if offered <= 0:
        return Fraction(0)
    return (node.taken.get(resource, Fraction(0)) + need.requests.get(resource, Fraction(0))) / offered


def score_packed(need: Need, node: NodeView) -> float:
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


POLICIES: Final[Mapping[str, Callable[[Need, NodeView], float]]] = {"packed": score_packed}


def place(need: Need, nodes: tuple[NodeView, ...], *, policy: str = "packed") -> Decision:
    """Choose a node for one pod.

    Args:    nodes: all nodes, any order.   policy: a row of `POLICIES`.
    Returns: the best node (ties: first by name) and a verdict on every node, in name order.
    """
    verdicts = tuple(_judge(need, node, POLICIES[policy]) for node in sorted(nodes, key=lambda node: node.name))
    fitting = [verdict for verdict in verdicts if verdict.score is not None]
    best = max(fitting, key=lambda verdict: verdict.score or 0.0, default=None)
    return Decision(node=best.node if best else None, verdicts=verdicts)


def _judge(need: Need, node: NodeView, scorer: Callable[[Need, NodeView], float]) -> Verdict:
    why_not = tuple(reason for check in FILTERS.values() for reason in check(need, node))
    return Verdict(node=node.name, why_not=why_not, score=None if why_not else scorer(need, node))
