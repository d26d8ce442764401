"""Places a pod: filters say why a node cannot, scores say which of the rest is best. Pure and deterministic.

This is the reference implementation: `place` judges every node for one pod, which is slow; tests compare what a live
scheduler uses, `EngineRankings` or (without numpy) `ranking.Ranking`, with it. Filters are a table of small functions
from (need, node) to reasons, worded as kube-scheduler words them. The policy `packed` packs GPUs: pods go to the node
whose GPUs are most taken, so that whole nodes stay free for large pods; `spread` sends them where GPUs are least taken.
Among equal nodes the one with the most free cpu and memory wins, then the name. Both are rows of `POLICIES`. What the
pod would rather have is weighed against that, where it distinguishes the nodes: rows of `SCORES`, with kube-scheduler's
weights and its scale from 0 to 100.

Amounts are whole thousandths (of a core, a byte, a device): requests rounded up, what a node offers rounded down.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead.plan.pod import admission, affinity
from fairlead.plan.pod.running import resize
from fairlead.plan.schedule import peers, rejection
from fairlead.plan.schedule.constraint import Ask, Filter
from fairlead.plan.schedule.summary import Reason, Summary
from fairlead.plan.schedule.topology import offers
from fairlead.wire.kubernetes import core, meta, quantity, selector

UNIT: Final = 1000
"""One of anything, in thousandths."""

Kind = tuple[int, int, str]
"""What pods that differ little have in common: cpu in thousandths, whole GPUs, the model they ask for."""
Domain = tuple[tuple[str, str], ...]
"""Labels that a node must have, with their values; an empty value stands for any."""
HostPort = tuple[str, str, int]
"""Address, protocol and number; the address 0.0.0.0 is all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """A node as the scheduler sees it: what it offers and what is taken."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[core.Taint, ...] = ()
    is_ready: bool = True
    is_unschedulable: bool = False
    allocatable: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, int] = field(default_factory=dict)
    ports: frozenset[HostPort] = frozenset()
    """Ports of the node that its pods have."""
    pods: tuple[peers.Peer, ...] = ()
    """Those on it, as the rules of other pods see them."""
    kinds: Mapping[Kind, int] = field(default_factory=dict)
    """How many pods of each kind are on it."""
    devices: Mapping[str, offers.Offer] = field(default_factory=dict)
    """By resource, where its agent says so: which devices are free, and how they hang together."""
    taken_for: Mapping[str, frozenset[Any]] = field(default_factory=dict)
    """By constraint: what its pods take of it (`constraint.Ask.takes`)."""
    limits: Mapping[str, Any] = field(default_factory=dict)
    """By constraint: what it can take; one that is not there says nothing."""
    is_imagined: bool = False
    """See `constraint.Node.is_imagined`."""
    rejected: Mapping[rejection.Shape, str] = field(default_factory=dict)
    """By what pods request: why the kubelet refused such a pod a while ago."""

    def free(self, resource: str) -> int:
        """Return what is left of a resource, in thousandths; 0 where the node does not offer it."""
        return self.allocatable.get(resource, 0) - self.taken.get(resource, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodInfo:
    """A pod as the scheduler sees it."""

    requests: Mapping[str, int]
    node_selector: Mapping[str, str] = field(default_factory=dict)
    affinity: core.NodeAffinity = field(default_factory=core.NodeAffinity)
    tolerations: tuple[core.Toleration, ...] = ()
    ports: frozenset[HostPort] = frozenset()
    peer: peers.Peer = field(default_factory=peers.Peer)
    asks: tuple[Ask, ...] = ()
    """What it asks of a node by constraints, one of each at the most."""
    domain: Domain = ()
    """The part of the network in which its group is placed."""
    policy: str = ""
    """By which policy it is placed; empty: the scheduler's."""
    is_grouped: bool = False
    """Whether it works together with pods that may be on other nodes."""
    _kind: Kind | None = field(default=None, init=False, repr=False, compare=False)
    """Kept, because every change of a node asks each of its pods."""

    @property
    def kind(self) -> Kind:
        """Return what the fragmentation of GPUs is measured by."""
        if self._kind is None:
            found = (self.requests.get("cpu", 0), gpus_of(self.requests), model_of(self.node_selector))
            object.__setattr__(self, "_kind", found)
            return found
        return self._kind

    def lacks(self, node: NodeInfo) -> list[str]:
        """Return the resources of which a node has too little, by name; what is met otherwise is not lacking."""
        short = sorted(name for name, value in self.requests.items() if value > node.free(name))
        met = self.met_on(node) if short and self.asks else _NONE
        return [name for name in short if name not in met] if met else short

    def met_on(self, node: NodeInfo) -> frozenset[str]:
        """Return the resources of which a node offers none, and which a constraint meets there."""
        return frozenset(name for ask in self.asks for name in ask.met if node.allocatable.get(name, 0) <= 0)

    def among(self, terms: Iterable[peers.Term]) -> PodInfo:
        """Return the need, with other pods judged if it has rules on them or their terms are about it."""
        peer = self.peer.among(terms)
        return self if peer is self.peer else dataclasses.replace(self, peer=peer)

    def key(self) -> tuple[object, ...]:
        """Return what equal needs have in common, as a value that can be looked up."""
        amounts, labels = frozenset(self.requests.items()), frozenset(self.node_selector.items())
        return (
            amounts,
            labels,
            self.affinity,
            self.tolerations,
            self.ports,
            self.asks,
            self.domain,
            self.policy,
            self.is_grouped,
            self.peer.key(),
        )


_NONE: Final = frozenset[str]()
_MODEL: Final = "nvidia.com/gpu.product"
_WHOLE_GPUS: Final = frozenset({"gpu", "i915", "xe"})
"""Last parts of the extended resources that stand for whole GPUs; slices and replicas have other names."""


def model_of(labels: Mapping[str, str]) -> str:
    """Return the model of GPUs that labels name, "" where they name none."""
    return labels.get(_MODEL, "")


def gpus_of(amounts: Mapping[str, int]) -> int:
    """Return how many whole GPUs are among amounts in thousandths."""
    return sum(value for name, value in amounts.items() if name.rpartition("/")[2] in _WHOLE_GPUS) // UNIT


def pod_info(pod: core.Pod, namespaces: peers.Namespaces = peers.NO_NAMESPACES) -> PodInfo:
    """Return what a pod asks of a node; every pod takes one of the node's `pods`.

    Args:    namespaces: labels of the namespaces that are known.
    Raises:  Invalid: a bad quantity.
    """
    asked = admission.effective_requests(resize.counted(pod).spec if pod.spec.node_name else pod.spec)
    return PodInfo(
        requests={**{name: math.ceil(value * UNIT) for name, value in asked.items()}, "pods": UNIT},
        node_selector=pod.spec.node_selector,
        affinity=affinity.of_pod(pod.spec),
        tolerations=pod.spec.tolerations,
        ports=frozenset(_host_ports(pod.spec)),
        peer=peers.of_pod(pod, namespaces),
    )


def _host_ports(spec: core.PodSpec) -> Iterable[HostPort]:
    running = (*spec.containers, *(one for one in spec.init_containers if one.restart_policy == "Always"))
    ports = (port for container in running for port in container.ports)
    return ((one.host_ip or _ANY_ADDRESS, one.protocol or "TCP", one.host_port) for one in ports if one.host_port > 0)


_NO_OFFERS: Final[Mapping[str, offers.Offer]] = {}


def node_info(
    node: core.Node, pods: Iterable[core.Pod], namespaces: peers.Namespaces = peers.NO_NAMESPACES
) -> NodeInfo:
    """Return a node with the requests of the pods bound to it; ended pods take nothing."""
    living = (pod for pod in pods if pod.status.phase not in core.ENDED_PHASES)
    return occupied(offered(node), (pod_info(pod, namespaces) for pod in living))


def offered(node: core.Node) -> NodeInfo:
    """Return a node with nothing on it."""
    ready = meta.find_condition(node.status.conditions, "Ready")
    return NodeInfo(
        name=node.metadata.name,
        labels=node.metadata.labels,
        taints=node.spec.taints,
        is_ready=ready is not None and ready.status == "True",
        is_unschedulable=node.spec.unschedulable,
        allocatable={
            name: math.floor(quantity.parse_quantity(text) * UNIT) for name, text in node.status.allocatable.items()
        },
    )


def occupied(node: NodeInfo, pods: Iterable[PodInfo], there: Mapping[str, offers.Offer] = _NO_OFFERS) -> NodeInfo:
    """Return an empty node with what pods take of it. Args: there: what they leave free of its devices."""
    taken, ports, peers_there, kinds = dict[str, int](), set[HostPort](), list[peers.Peer](), dict[Kind, int]()
    taken_for = dict[str, frozenset[Any]]()
    for pod in pods:
        kinds[pod.kind] = kinds.get(pod.kind, 0) + 1
        peers_there.append(pod.peer)
        ports |= pod.ports
        for ask in pod.asks:
            taken_for[ask.constraint] = taken_for.get(ask.constraint, frozenset()) | ask.takes
        for resource, value in pod.requests.items():
            taken[resource] = taken.get(resource, 0) + value
    return dataclasses.replace(
        node,
        taken=taken,
        ports=frozenset(ports),
        pods=tuple(peers_there),
        kinds=kinds,
        devices=there,
        taken_for=taken_for,
    )


_NOT_READY: Final = core.Taint(key="node.kubernetes.io/not-ready")
_ANY_ADDRESS: Final = "0.0.0.0"  # noqa: S104 what pods ask for, not where we listen
_UNSCHEDULABLE: Final = core.Taint(key="node.kubernetes.io/unschedulable")


def _ready(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    # On a cluster a taint does this, which some pods tolerate; on one machine no controller sets it.
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


def _ports(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    taken = bool(need.ports) and any(_collide(wanted, other) for wanted in need.ports for other in node.ports)
    return ("node(s) didn't have free ports for the requested pod ports",) if taken else ()


def taken_ports(need: PodInfo, other: PodInfo) -> tuple[int, ...]:
    """Return the ports of the node that a pod asks for and another pod has, in order."""
    return tuple(sorted({one[2] for one in need.ports for two in other.ports if _collide(one, two)}))


def _collide(one: HostPort, other: HostPort) -> bool:
    return one[1:] == other[1:] and (one[0] == other[0] or _ANY_ADDRESS in {one[0], other[0]})


def _rejected(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    reason = node.rejected.get(frozenset(need.requests.items())) if node.rejected else None
    return () if reason is None else (f"node(s) {rejection.WORDS} ({reason})",)


def _domain(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    labels = node.labels
    is_there = all(key in labels and value in {"", labels[key]} for key, value in need.domain)
    return () if is_there else (f"node(s) outside the topology domain of the pod's group ({need.domain[-1][0]})",)


def _resources(need: PodInfo, node: NodeInfo) -> tuple[str, ...]:
    return tuple(lack(name) for name in need.lacks(node))


def lack(resource: str) -> str:
    """Return what is said of a node that has too little of a resource."""
    return "Too many pods" if resource == "pods" else f"Insufficient {resource}"


Check = Callable[["PodInfo", "NodeInfo"], tuple[str, ...]]
FILTERS: Final[Mapping[str, Check]] = {
    "NodeReady": _ready,
    "NodeUnschedulable": _schedulable,
    "TaintToleration": _taints,
    "NodeAffinity": _affinity,
    "TopologyDomain": _domain,
    "NodePorts": _ports,
    "KubeletRejection": _rejected,
    "NodeResourcesFit": _resources,
}
"""In kube-scheduler's order, resources last. `NodeReady`, `TopologyDomain` and `KubeletRejection` are ours alone.

Those of constraints that a pod asks by come before resources (`filters`).
"""
_LAST: Final = "NodeResourcesFit"


def filters(need: PodInfo) -> Mapping[str, Check]:
    """Return the filters that a pod is judged by, in order."""
    return _filters(tuple(map(type, need.asks))) if need.asks else FILTERS


@functools.lru_cache(maxsize=64)
def _filters(kinds: tuple[type[Ask], ...]) -> Mapping[str, Check]:
    asked = {one.name: _asked(at, one) for at, kind in enumerate(kinds) for one in kind.filters}
    return {**{name: check for name, check in FILTERS.items() if name != _LAST}, **asked, _LAST: FILTERS[_LAST]}


def _asked(at: int, one: Filter) -> Check:
    return lambda need, node: one.check(need.asks[at], node)


def first_refusal(need: PodInfo, node: NodeInfo) -> tuple[str, tuple[str, ...]] | None:
    """Return the first filter that refuses the node and what it says; None: the node fits."""
    for name, check in filters(need).items():
        if why := check(need, node):
            return name, why
    return None


def tally(need: PodInfo, node: NodeInfo) -> peers.Tally:
    """Return what the node's pods are to the need; `peers.Survey` judges by all nodes' tallies."""
    agrees, bears = not _affinity(need, node), not _taints(need, node)
    return peers.tally(need.peer, node.labels, node.pods, agrees=agrees, bears=bears)


def _share(need: PodInfo, node: NodeInfo, resource: str) -> float:
    """Return the taken share of a resource once the pod is there, 0 to 1."""
    offered = node.allocatable.get(resource, 0)
    if offered <= 0:
        return 0.0
    return (node.taken.get(resource, 0) + need.requests.get(resource, 0)) / offered


def score_packed(need: PodInfo, node: NodeInfo) -> float:
    """Score 0 to 100: GPUs packed (most taken first, nine parts), cpu and memory spread (one part).

    A pod without devices prefers nodes without them, so that cpu work does not strand GPUs.
    """
    return _score(need, node, lambda taken: taken)


def score_spread(need: PodInfo, node: NodeInfo) -> float:
    """Score 0 to 100: GPUs spread (least taken first, nine parts), the rest as `score_packed`."""
    return _score(need, node, lambda taken: 1 - taken)


def _score(need: PodInfo, node: NodeInfo, worth: Callable[[float], float]) -> float:
    devices = [name for name in need.requests if admission.is_extended(name)]
    even = sum(1 - _share(need, node, name) for name in ("cpu", "memory")) / 2
    if devices:
        best = worth(sum(_share(need, node, name) for name in sorted(devices)) / len(devices))
    else:
        best = (
            0.0 if any(value > 0 and admission.is_extended(name) for name, value in node.allocatable.items()) else 1.0
        )
    return _hundredths(90 * best + 10 * even)


def _hundredths(score: float) -> float:
    """Round to hundredths by arithmetic alone, so that the engine's arrays come to the same figures to the bit."""
    return math.floor(score * 100 + 0.5) / 100


POLICIES: Final[Mapping[str, Callable[[PodInfo, NodeInfo], float]]] = {"packed": score_packed, "spread": score_spread}
"""`control.policy` chooses one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One preference between nodes, weighed against the policy.

    It is worth 0 where neither the pod nor the node concerns it: the live scheduler does not ask for it there.
    """

    weight: int
    """Beside the policy's 1."""
    worth: Callable[[PodInfo, NodeInfo], int]
    """What a node is worth to a pod; only differences between the nodes count, not the scale."""
    concerns_pod: Callable[[PodInfo], bool] = lambda _need: False
    """Whether such a pod may make a difference, at any node."""
    concerns_node: Callable[[NodeInfo], bool] = lambda _node: False
    """Whether such a node may make a difference, to any pod."""
    measure: offers.Measure | None = None
    """What the devices of a node are worth, where that is all that counts: looked up for many nodes at a time."""


def _preferred(need: PodInfo, node: NodeInfo) -> int:
    return affinity.weight(need.affinity, name=node.name, labels=node.labels)


def _is_preferring(need: PodInfo) -> bool:
    return bool(need.affinity.preferred_during_scheduling_ignored_during_execution)


def soft_taints(node: NodeInfo) -> tuple[core.Taint, ...]:
    """Return the taints that speak against a node without forbidding it."""
    return tuple(taint for taint in node.taints if taint.effect == "PreferNoSchedule")


def _avoided(need: PodInfo, node: NodeInfo) -> int:
    """Return how many taints speak against the node without forbidding it, negative: the fewer the better."""
    return -sum(not selector.tolerates(need.tolerations, taint) for taint in soft_taints(node))


def _asks_devices(need: PodInfo) -> bool:
    return bool(offers.asked(need.requests))


def _together(need: PodInfo, node: NodeInfo) -> int:
    """Return how well the devices hang together that the pod would get on the node."""
    return offers.worth(offers.asked(need.requests), node.devices)


def _beside_nics(need: PodInfo, node: NodeInfo) -> int:
    """Return how many in a hundred of the GPUs of a group's pod would have a network card beside them."""
    return offers.worth(offers.asked(need.requests), node.devices, offers.rails_of) if need.is_grouped else 0


def _graded(need: PodInfo, node: NodeInfo) -> int:
    """Return how good a node is by what the pod asks by constraints."""
    return sum(ask.grade(node) for ask in need.asks if ask.is_graded)


RAILS: Final = "GPURails"
SCORES: Final[Mapping[str, Score]] = {
    "NodeAffinity": Score(weight=2, worth=_preferred, concerns_pod=_is_preferring),
    "TaintToleration": Score(weight=3, worth=_avoided, concerns_node=lambda node: bool(soft_taints(node))),
    "DynamicResources": Score(
        weight=2, worth=_graded, concerns_pod=lambda need: any(ask.is_graded for ask in need.asks)
    ),
    "GPUTopology": Score(weight=2, worth=_together, concerns_pod=_asks_devices, measure=offers.worth_of),
    RAILS: Score(weight=1, worth=_beside_nics, concerns_pod=lambda need: need.is_grouped, measure=offers.rails_of),
}
"""By the name of the preference. Source: kube-scheduler's default plugins.

GPUs joined by NVLink, 100, weigh more than the policy against those of one PCIe switch, 60, and less than what the pod
asks for by name."""


def place(
    need: PodInfo, nodes: Iterable[NodeInfo], *, policy: str = "packed", beside: Iterable[NodeInfo] = ()
) -> Summary:
    """Choose a node for one pod.

    Args:    nodes: all nodes, any order.   policy: a row of `POLICIES`.   beside: nodes that are not judged, whose
             pods count for its rules on other pods.
    Returns: the best node (ties: first by name), and what spoke for and against the others.
    """
    ordered, others = sorted(nodes, key=lambda node: node.name), tuple(beside)
    fitting, names = list[NodeInfo](), dict[str, list[str]]()
    need = need.among(term for node in (*ordered, *others) for pod in node.pods for term in pod.terms)
    tallies = {node.name: tally(need, node) for node in (*ordered, *others)} if need.peer.is_concerned else {}
    survey = peers.Survey(need.peer, tallies.values()) if need.peer.is_concerned else None
    for node in ordered:
        refusal = first_refusal(need, node)
        if refusal is None and survey is not None:
            refusal = survey.refusal(tallies[node.name])
        if refusal is None:
            fitting.append(node)
            continue
        for reason in refusal[1]:
            names.setdefault(reason, []).append(node.name)
    more = survey.scores([tallies[node.name] for node in fitting]) if survey is not None else ()
    by_name = {node.name: node for node in fitting}
    best = sorted(_scores(need, fitting, POLICIES[policy], more).items(), key=lambda item: (-item[1], item[0]))
    return Summary(
        nodes=len(ordered),
        fitting=len(best),
        best=tuple(best[: Summary.BEST]),
        devices=offers.words(need.requests, by_name[best[0][0]].devices) if best else "",
        reasons=tuple(Reason(why=why, nodes=len(found), example=found[0]) for why, found in names.items()),
    )


def _scores(
    need: PodInfo,
    nodes: Sequence[NodeInfo],
    scorer: Callable[[PodInfo, NodeInfo], float],
    more: Sequence[tuple[int, Sequence[float]]],
) -> dict[str, float]:
    names = [node.name for node in nodes]
    worths = {name: [score.worth(need, node) for node in nodes] for name, score in SCORES.items()}
    return dict(zip(names, combined([scorer(need, node) for node in nodes], worths, more), strict=True))


def combined(
    base: Sequence[float], worths: Mapping[str, Sequence[int]], more: Sequence[tuple[int, Sequence[float]]] = ()
) -> list[float]:
    """Return the nodes' scores, 0 to 100: the policy's, and every preference that distinguishes them, by weight.

    Args: base: the policy's score of each node.   worths: of each row of `SCORES` what each node is worth, as `base`.
          more: weights, and what each node is worth from 0 to 100.
    """
    parts = [(1, base)]
    parts += [(SCORES[name].weight, _scaled(values)) for name, values in worths.items() if len(set(values)) > 1]
    parts += [(weight, values) for weight, values in more if len(set(values)) > 1]
    whole = sum(weight for weight, _ in parts)
    return [_hundredths(sum(weight * values[at] for weight, values in parts) / whole) for at in range(len(base))]


def _scaled(values: Sequence[int]) -> list[float]:
    """Return shares of the largest, or, of values below zero, what is left of the smallest: 0 to 100."""
    most, least = max(values), min(values)
    return [100 * value / most if most > 0 else 100 * (1 - value / least) for value in values]
