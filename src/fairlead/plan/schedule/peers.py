"""Judges nodes by the pods on them and beside them: pod affinity and anti-affinity, and topology spread.

Pure. `tally` counts one node's pods for one pod, and depends on that node alone; `Survey` adds the tallies of all nodes
up by the values of a label (a zone, a host), and says what refuses a node and what it is worth. A running pod's
anti-affinity keeps others away, and its preferences count too, so a pod without rules of its own may be concerned.

Where a namespace's labels are not known only its name is read, as its label `kubernetes.io/metadata.name`: a term that
selects namespaces by other labels then keeps its pods away where it is a running pod's anti-affinity, and counts for
nothing else.
Source: kubernetes pkg/scheduler/framework/plugins interpodaffinity, podtopologyspread; their words are kept.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairlead.wire.kubernetes import core, meta, selector

AFFINITY: Final = "InterPodAffinity"
SPREAD: Final = "PodTopologySpread"
WEIGHT: Final = 2
"""Of either beside the policy's 1; kube-scheduler's."""
_NAME: Final = "kubernetes.io/metadata.name"
_HOST: Final = "kubernetes.io/hostname"
_NO_SPREAD: Final = "node(s) didn't match pod topology spread constraints"
_MOST: Final = 100

Rules = tuple[selector.Requirement, ...] | None
"""A label selector; None selects nothing, and none at all everything."""
Namespaces = Mapping[str, Mapping[str, str]]
"""Labels by namespace."""
NO_NAMESPACES: Final[Namespaces] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """Pods, and the label whose value makes nodes one place."""

    topology_key: str
    rules: Rules
    namespaces: frozenset[str]
    namespace_rules: Rules = None

    @property
    def is_known(self) -> bool:
        """Whether namespaces are selected by their names alone."""
        return all(one.key == _NAME for one in self.namespace_rules or ())

    def selects(self, pod: Peer) -> bool:
        """Return whether the term is about a pod."""
        return self._has_labels(pod) and self._has_namespace(pod)

    def may_select(self, pod: Peer) -> bool:
        """Return whether the term is, or for all that is known here may be, about a pod."""
        is_in_doubt = pod.namespace_labels is None and not self.is_known
        return self._has_labels(pod) and (is_in_doubt or self._has_namespace(pod))

    def _has_labels(self, pod: Peer) -> bool:
        return self.rules is not None and selector.matches(self.rules, pod.labels)

    def _has_namespace(self, pod: Peer) -> bool:
        if pod.namespace in self.namespaces:
            return True
        rules, labels = self.namespace_rules, pod.namespace_labels
        if rules is None or (labels is None and not self.is_known):
            return False
        return selector.matches(rules, {**(labels or {}), _NAME: pod.namespace})


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How evenly pods of one namespace lie over the values of a label."""

    topology_key: str
    rules: Rules
    max_skew: int
    min_domains: int
    is_required: bool
    minds_affinity: bool
    """Only nodes that the pod's node selector and affinity allow are counted."""
    minds_taints: bool
    """Only nodes whose taints the pod bears are counted."""
    is_default: bool = False
    """It is not the pod's own: nodes without the label are judged by the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A pod as other pods' rules see it, with its own rules on other pods."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] | None = None
    """Of its namespace; None: they are not known."""
    is_leaving: bool = False
    near: tuple[Term, ...] = ()
    """Of all of which one pod must be there."""
    apart: tuple[Term, ...] = ()
    """Of each of which no pod may be there."""
    preferred: tuple[tuple[int, Term], ...] = ()
    """With weights, below zero for those to be far from."""
    spread: tuple[Spread, ...] = ()
    is_concerned: bool = False
    """Whether pods decide where it goes: it has rules, or those of others are about it."""

    @property
    def has_rules(self) -> bool:
        """Whether it has rules of its own."""
        return bool(self.near or self.apart or self.preferred or self.spread)

    @property
    def terms(self) -> tuple[Term, ...]:
        """Return what it says of other pods, once they come near it."""
        return (*self.near, *self.apart, *(term for _, term in self.preferred))

    def key(self) -> tuple[object, ...]:
        """Return what peers that are judged alike have in common; nothing where pods do not matter."""
        if not self.is_concerned:
            return ()
        labels = frozenset(self.labels.items())
        around = None if self.namespace_labels is None else frozenset(self.namespace_labels.items())
        return (self.namespace, around, labels, self.near, self.apart, self.preferred, self.spread)

    def among(self, terms: Iterable[Term]) -> Peer:
        """Return the pod, concerned if it has rules or one of the terms of running pods is about it."""
        is_concerned = self.has_rules or any(term.may_select(self) for term in terms)
        return self if is_concerned == self.is_concerned else dataclasses.replace(self, is_concerned=is_concerned)

    def alone(self) -> Peer:
        """Return the pod without rules, as if no other were there."""
        return Peer(namespace=self.namespace, namespace_labels=self.namespace_labels, labels=self.labels)


def of_pod(pod: core.Pod, namespaces: Namespaces = NO_NAMESPACES) -> Peer:
    """Return a pod with its rules; `namespaces` has the labels of those that are known, by name."""
    about, spec = pod.metadata, pod.spec
    affinity = spec.affinity or core.Affinity()
    near, apart = affinity.pod_affinity or core.PodAffinity(), affinity.pod_anti_affinity or core.PodAffinity()
    liked = [(one.weight, one.pod_affinity_term) for one in near.preferred_during_scheduling_ignored_during_execution]
    liked += [
        (-one.weight, one.pod_affinity_term) for one in apart.preferred_during_scheduling_ignored_during_execution
    ]
    required = (
        near.required_during_scheduling_ignored_during_execution,
        apart.required_during_scheduling_ignored_during_execution,
    )
    peer = Peer(
        namespace=about.namespace,
        labels=about.labels,
        namespace_labels=namespaces.get(about.namespace),
        is_leaving=about.deletion_timestamp is not None,
        near=tuple(term(one, about) for one in required[0]),
        apart=tuple(term(one, about) for one in required[1]),
        preferred=tuple((weight, term(one, about)) for weight, one in liked),
        spread=tuple(_spread(one, about) for one in spec.topology_spread_constraints),
    )
    return peer.among(())


def term(one: core.PodAffinityTerm, about: meta.ObjectMeta) -> Term:
    """Return a term as a pod with these labels and this namespace means it."""
    like = _keys("In", one.match_label_keys, about.labels)
    unlike = _keys("NotIn", one.mismatch_label_keys, about.labels)
    is_own = not one.namespaces and one.namespace_selector is None
    return Term(
        topology_key=one.topology_key,
        rules=label_rules(one.label_selector, *like, *unlike),
        namespaces=frozenset((about.namespace,) if is_own else one.namespaces),
        namespace_rules=label_rules(one.namespace_selector),
    )


def _spread(one: core.TopologySpreadConstraint, about: meta.ObjectMeta) -> Spread:
    return Spread(
        topology_key=one.topology_key,
        rules=label_rules(one.label_selector, *_keys("In", one.match_label_keys, about.labels)),
        max_skew=one.max_skew,
        min_domains=1 if one.min_domains is None else one.min_domains,
        is_required=one.when_unsatisfiable == "DoNotSchedule",
        minds_affinity=one.node_affinity_policy in {None, "Honor"},
        minds_taints=one.node_taints_policy == "Honor",
    )


def _keys(operator: str, keys: Sequence[str], labels: Mapping[str, str]) -> list[selector.Requirement]:
    return [selector.Requirement(key, operator, (labels[key],)) for key in keys if key in labels]


def label_rules(chosen: meta.LabelSelector | None, *more: selector.Requirement) -> Rules:
    """Return a label selector as it is matched, with further conditions; None selects nothing."""
    if chosen is None:
        return None
    equal = (selector.Requirement(key, "In", (value,)) for key, value in sorted(chosen.match_labels.items()))
    read = (_readable(one) for one in chosen.match_expressions)
    return (*equal, *read, *(one for one in more))


def _readable(one: meta.LabelSelectorRequirement) -> selector.Requirement:
    """Return one condition; a malformed one, which no API server lets through, is met by nothing."""
    is_valued = one.operator in {"In", "NotIn"} and bool(one.values)
    if is_valued or one.operator in {"Exists", "DoesNotExist"}:
        return selector.Requirement(one.key, one.operator, one.values)
    return selector.Requirement(one.key, "In", ())


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What one node's pods are to one pod."""

    labels: Mapping[str, str]
    near: int = 0
    """Pods that every required affinity term selects."""
    apart: tuple[int, ...] = ()
    """By required anti-affinity term: pods that it selects."""
    shunned: tuple[str, ...] = ()
    """Keys over which pods there keep the pod away."""
    worth: tuple[tuple[str, int], ...] = ()
    """By key: weights of preferences, the pod's and theirs."""
    spread: tuple[int, ...] = ()
    """By constraint: pods that it selects."""
    counted: tuple[bool, ...] = ()
    """By constraint: whether the node counts for it."""


def tally(pod: Peer, labels: Mapping[str, str], there: Sequence[Peer], *, agrees: bool, bears: bool) -> Tally:
    """Count a node's pods for one pod.

    Args: agrees: the pod's node selector and affinity allow the node.   bears: it tolerates the node's taints.
    """
    worth = Counter[str]()
    for other in there:
        for weight, term in pod.preferred:
            worth[term.topology_key] += weight * term.selects(other)
        for weight, term in (*((1, term) for term in other.near), *other.preferred):
            worth[term.topology_key] += weight * term.selects(pod)
    return Tally(
        labels=labels,
        near=sum(_is_near(pod, other) for other in there) if pod.near else 0,
        apart=tuple(sum(term.selects(other) for other in there) for term in pod.apart),
        shunned=tuple(sorted({term.topology_key for one in there for term in one.apart if term.may_select(pod)})),
        worth=tuple(sorted((key, value) for key, value in worth.items() if value)),
        spread=tuple(sum(_counts(one, pod, other) for other in there) for one in pod.spread),
        counted=tuple((agrees or not one.minds_affinity) and (bears or not one.minds_taints) for one in pod.spread),
    )


def _is_near(pod: Peer, other: Peer) -> bool:
    return all(term.selects(other) for term in pod.near)


def _counts(one: Spread, pod: Peer, other: Peer) -> bool:
    if not one.rules or other.is_leaving or other.namespace != pod.namespace:
        return False
    return selector.matches(one.rules, other.labels)


class Survey:
    """All nodes' tallies for one pod, added up by the values of labels."""

    def __init__(self, pod: Peer, tallies: Iterable[Tally]) -> None:
        """Add the tallies up."""
        self._pod = pod
        self._tallies = tuple(tallies)
        self._near = Counter[tuple[str, str]]()
        self._apart = [Counter[str]() for _ in pod.apart]
        self._shunned = set[tuple[str, str]]()
        self._worth = Counter[tuple[str, str]]()
        for one in self._tallies:
            self._add(one)
        self._required = [place for place, rule in enumerate(pod.spread) if rule.is_required]
        self._preferred = [place for place, rule in enumerate(pod.spread) if not rule.is_required]
        self._spread = {place: Counter[str]() for place in self._required}
        for one in self._labelled(self._required, self._tallies):
            for place in self._required:
                if one.counted[place]:
                    self._spread[place][one.labels[pod.spread[place].topology_key]] += one.spread[place]
        self._least = {place: self._fewest(place) for place in self._required}

    def _add(self, one: Tally) -> None:
        labels = one.labels
        for term in self._pod.near if one.near else ():
            if term.topology_key in labels:
                self._near[term.topology_key, labels[term.topology_key]] += one.near
        for term, counts, count in zip(self._pod.apart, self._apart, one.apart, strict=True):
            if count and term.topology_key in labels:
                counts[labels[term.topology_key]] += count
        self._shunned.update((key, labels[key]) for key in one.shunned if key in labels)
        for key, weight in one.worth:
            if key in labels:
                self._worth[key, labels[key]] += weight

    def _labelled(self, places: Sequence[int], tallies: Iterable[Tally]) -> list[Tally]:
        """Return the nodes that have the label of every one of these constraints."""
        keys = [self._pod.spread[place].topology_key for place in places]
        return [one for one in tallies if all(key in one.labels for key in keys)]

    def _fewest(self, place: int) -> float:
        counts, rule = self._spread[place], self._pod.spread[place]
        # Fewer places than the rule wants: the least is 0, so a full place refuses until another one is there.
        return 0 if len(counts) < rule.min_domains else min(counts.values(), default=math.inf)

    def refusal(self, node: Tally) -> tuple[str, tuple[str, ...]] | None:
        """Return the first filter that refuses a node and what it says; None: the node fits."""
        if why := self._spread_refusal(node) if self._required else "":
            return SPREAD, (why,)
        if why := self._affinity_refusal(node):
            return AFFINITY, (why,)
        return None

    def _spread_refusal(self, node: Tally) -> str:
        for place in self._required:
            rule = self._pod.spread[place]
            value = node.labels.get(rule.topology_key)
            if value is None:
                return f"{_NO_SPREAD} (missing required label)"
            own = rule.rules is not None and selector.matches(rule.rules, self._pod.labels)
            if self._spread[place][value] + own - self._least[place] > rule.max_skew:
                return _NO_SPREAD
        return ""

    def _affinity_refusal(self, node: Tally) -> str:
        labels = node.labels
        if not self._is_near(labels):
            return "node(s) didn't match pod affinity rules"
        rules = zip(self._pod.apart, self._apart, strict=True)
        if any(counts[labels[term.topology_key]] for term, counts in rules if term.topology_key in labels):
            return "node(s) didn't match pod anti-affinity rules"
        if any(labels.get(key) == value for key, value in self._shunned):
            return "node(s) didn't satisfy existing pods anti-affinity rules"
        return ""

    def _is_near(self, labels: Mapping[str, str]) -> bool:
        keys = [term.topology_key for term in self._pod.near]
        if any(key not in labels for key in keys):
            return False
        # The first of pods that are to be near each other finds none: it may go anywhere.
        is_first = not self._near and _is_near(self._pod, self._pod)
        return is_first or all(self._near[key, labels[key]] for key in keys)

    def scores(self, nodes: Sequence[Tally]) -> list[tuple[int, list[float]]]:
        """Return, of each preference, its weight and what each of the nodes that fit is worth, 0 to 100."""
        found = [(WEIGHT, self._affinity_scores(nodes))] if self._worth else []
        return [*found, (WEIGHT, self._spread_scores(nodes))] if self._preferred else found

    def _affinity_scores(self, nodes: Sequence[Tally]) -> list[float]:
        keys = {key for key, _ in self._worth}
        sums = [sum(self._worth[key, node.labels[key]] for key in keys if key in node.labels) for node in nodes]
        least, most = min(sums, default=0), max(sums, default=0)
        return [_MOST * (value - least) / (most - least) if most > least else 0.0 for value in sums]

    def _spread_scores(self, nodes: Sequence[Tally]) -> list[float]:
        rules = {place: self._pod.spread[place] for place in self._preferred}
        is_own = not any(rule.is_default for rule in rules.values())
        labelled = self._labelled(self._preferred, nodes) if is_own else list(nodes)
        counts = {
            place: dict.fromkeys(
                (one.labels[rule.topology_key] for one in labelled if rule.topology_key in one.labels), 0
            )
            for place, rule in rules.items()
        }
        for one in self._labelled(self._preferred, self._tallies) if is_own else self._tallies:
            for place, rule in rules.items():
                value = one.labels.get(rule.topology_key)
                if value is not None and one.counted[place] and value in counts[place]:
                    counts[place][value] += one.spread[place]
        worths = [self._crowd(node, counts, len(labelled)) for node in nodes]
        # From crowded to worth: the emptiest place gets the fullest one's figure. Source: podtopologyspread/scoring.go.
        known = [value for value in worths if value is not None]
        least, most = min(known, default=0), max(known, default=0)
        return [
            0.0 if value is None else float(_MOST * (most + least - value) // most) if most else float(_MOST)
            for value in worths
        ]

    def _crowd(self, node: Tally, counts: Mapping[int, Mapping[str, int]], nodes: int) -> int | None:
        """Return how crowded a node's places are, None where it lacks a label; few places count less each."""
        whole = 0.0
        for place, values in counts.items():
            rule = self._pod.spread[place]
            if rule.topology_key not in node.labels:
                if rule.is_default:
                    continue
                return None
            is_host = rule.topology_key == _HOST
            # By the logarithm a pod more counts more where the topology key has more domains, as in kube-scheduler.
            count = node.spread[place] if is_host else values[node.labels[rule.topology_key]]
            whole += count * math.log((nodes if is_host else len(values)) + 2) + rule.max_skew - 1
        return math.floor(whole + 0.5)
