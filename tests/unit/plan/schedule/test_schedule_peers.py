"""Pod affinity, anti-affinity and topology spread: tables of upstream's cases, and a plain loop as the truth."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.schedule import peers, ranking, reference, waiting
from fairlead.plan.schedule.queue import hint
from fairlead.wire.kubernetes import core, meta

_HOST, _ZONE = "kubernetes.io/hostname", "zone"
_NEAR = "node(s) didn't match pod affinity rules"
_APART = "node(s) didn't match pod anti-affinity rules"
_SHUNNED = "node(s) didn't satisfy existing pods anti-affinity rules"
_UNEVEN = "node(s) didn't match pod topology spread constraints"
_UNLABELLED = f"{_UNEVEN} (missing required label)"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_WEB = {"matchLabels": {"app": "web"}}


def _pod(app: str = "", node: str = "", *, ns: str = "default", leaving: bool = False, **spec: Any) -> core.Pod:
    about = {"name": "p", "namespace": ns, "labels": {"app": app} if app else {}}
    if leaving:
        about["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    body = {"nodeName": node, "containers": [{"name": "main"}], **spec}
    return msgspec.convert({"metadata": about, "spec": body}, core.Pod)


def _node(name: str, *, taints: tuple[dict[str, str], ...] = (), cpu: str = "8", **labels: str) -> core.Node:
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": {"cpu": cpu, "pods": "110"}, "conditions": [ready]}
    about = {"name": name, "labels": {_HOST: name, **labels}}
    return msgspec.convert({"metadata": about, "spec": {"taints": taints}, "status": status}, core.Node)


def _views(nodes: Sequence[core.Node], pods: Sequence[core.Pod]) -> list[reference.NodeInfo]:
    return [
        reference.node_info(node, [pod for pod in pods if pod.spec.node_name == node.metadata.name]) for node in nodes
    ]


def _term(app: str = "web", key: str = _ZONE, **more: Any) -> dict[str, Any]:
    return {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": key, **more}


def _near(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAffinity": {_REQUIRED: terms}}}


def _apart(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"affinity": {"podAntiAffinity": {_REQUIRED: terms}}}


def _spread(key: str = _ZONE, *, skew: int = 1, **more: Any) -> dict[str, Any]:
    return {"topologyKey": key, "maxSkew": skew, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": _WEB, **more}


def _even(*constraints: dict[str, Any]) -> dict[str, Any]:
    return {"topologySpreadConstraints": constraints}


_NODES = (_node("a1", zone="a"), _node("a2", zone="a"), _node("b1", zone="b"), _node("bare"))


def _refused(pod: core.Pod, pods: Sequence[core.Pod], nodes: Sequence[core.Node] = _NODES) -> dict[str, str]:
    """Return the nodes that are refused, each with its reason."""
    views = _views(nodes, pods)
    found = dict[str, str]()
    for view in views:
        others = [one for one in views if one is not view]
        for reason in reference.place(reference.pod_info(pod), (view,), beside=others).reasons:
            found[view.name] = reason.why
    return found


@pytest.mark.parametrize(
    ("pod", "pods", "refused"),
    [
        # affinity
        (_pod(**_near(_term())), [_pod("web", "a1")], {"b1": _NEAR, "bare": _NEAR}),
        (_pod(**_near(_term(key=_HOST))), [_pod("web", "a1")], {"a2": _NEAR, "b1": _NEAR, "bare": _NEAR}),
        (_pod(**_near(_term())), [], dict.fromkeys(("a1", "a2", "b1", "bare"), _NEAR)),
        (_pod("web", **_near(_term())), [], {"bare": _NEAR}),  # the first of its kind
        (_pod("web", **_near(_term())), [_pod("web", "b1")], {"a1": _NEAR, "a2": _NEAR, "bare": _NEAR}),
        (_pod("web", **_near(_term())), [_pod("web", "bare")], {"bare": _NEAR}),  # a pod outside every zone
        (_pod("web", **_near(_term(), _term("db"))), [], dict.fromkeys(("a1", "a2", "b1", "bare"), _NEAR)),
        (  # one pod must meet every term
            _pod(**_near(_term(), _term("db"))),
            [_pod("web", "a1"), _pod("db", "a2")],
            dict.fromkeys(("a1", "a2", "b1", "bare"), _NEAR),
        ),
        # namespaces
        (_pod(**_near(_term())), [_pod("web", "a1", ns="x")], dict.fromkeys(("a1", "a2", "b1", "bare"), _NEAR)),
        (
            _pod(**_apart(_term(namespaces=["x", "y"]))),
            [_pod("web", "a1", ns="x"), _pod("web", "b1")],
            {"a1": _APART, "a2": _APART},
        ),
        (_pod(**_apart(_term(namespaceSelector={}))), [_pod("web", "b1", ns="x")], {"b1": _APART}),
        (
            _pod(
                **_apart(
                    _term(namespaces=["y"], namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "x"}})
                )
            ),
            [_pod("web", "b1", ns="x"), _pod("web", "a1"), _pod("web", "bare", ns="y")],
            {"b1": _APART},
        ),
        # label selectors
        (_pod(**_apart({"topologyKey": _ZONE})), [_pod("web", "a1")], {}),
        (_pod(**_apart({"topologyKey": _ZONE, "labelSelector": {}})), [_pod("", "b1")], {"b1": _APART}),
        (_pod("web", **_apart(_term("db", matchLabelKeys=["app"]))), [_pod("db", "b1")], {}),
        (
            _pod("web", **_apart({"topologyKey": _ZONE, "labelSelector": {}, "mismatchLabelKeys": ["app"]})),
            [_pod("db", "b1"), _pod("web", "a1")],
            {"b1": _APART},
        ),
        # anti-affinity, both ways
        (_pod(**_apart(_term())), [_pod("web", "a1")], {"a1": _APART, "a2": _APART}),
        (_pod(**_apart(_term())), [_pod("web", "bare")], {}),
        (_pod("web"), [_pod("db", "a1", **_apart(_term()))], {"a1": _SHUNNED, "a2": _SHUNNED}),
        (_pod("web"), [_pod("db", "bare", **_apart(_term()))], {}),
        (_pod("web", ns="x"), [_pod("db", "a1", **_apart(_term()))], {}),
        (_pod("other"), [_pod("db", "a1", **_apart(_term()))], {}),
        (  # what is not known of namespaces keeps away
            _pod("web", ns="x"),
            [_pod("db", "b1", **_apart(_term(namespaceSelector={"matchLabels": {"team": "red"}})))],
            {"b1": _SHUNNED},
        ),
        # spread
        (_pod("web", **_even(_spread())), [_pod("web", "a1")], {"a1": _UNEVEN, "a2": _UNEVEN, "bare": _UNLABELLED}),
        (_pod("web", **_even(_spread(skew=2))), [_pod("web", "a1")], {"bare": _UNLABELLED}),
        (_pod("db", **_even(_spread())), [_pod("web", "a1")], {"bare": _UNLABELLED}),  # it does not count itself
        (_pod("web", **_even(_spread())), [_pod("web", "a1", leaving=True)], {"bare": _UNLABELLED}),
        (_pod("web", **_even(_spread())), [_pod("web", "a1", ns="x")], {"bare": _UNLABELLED}),
        (_pod("web", **_even(_spread(labelSelector={}))), [_pod("web", "a1")], {"bare": _UNLABELLED}),
        (_pod("web", **_even(_spread(labelSelector=None))), [_pod("web", "a1")], {"bare": _UNLABELLED}),
        (_pod("web", **_even(_spread(minDomains=3))), [_pod("web", "b1")], {"b1": _UNEVEN, "bare": _UNLABELLED}),
        (
            _pod("web", **_even(_spread(minDomains=3))),
            [_pod("web", "b1"), _pod("web", "a1")],
            {"a1": _UNEVEN, "a2": _UNEVEN, "b1": _UNEVEN, "bare": _UNLABELLED},
        ),
        (
            _pod("web", **_even(_spread(labelSelector={}, matchLabelKeys=["app"]))),
            [_pod("web", "a1")],
            {"a1": _UNEVEN, "a2": _UNEVEN, "bare": _UNLABELLED},
        ),
        (  # of zone b the pod has no node: it does not count, unless the policy ignores that
            _pod("web", nodeSelector={"zone": "a"}, **_even(_spread())),
            [_pod("web", "a1")],
            {name: "node(s) didn't match Pod's node affinity/selector" for name in ("b1", "bare")},
        ),
        (
            _pod("web", nodeSelector={"zone": "a"}, **_even(_spread(nodeAffinityPolicy="Ignore"))),
            [_pod("web", "a1")],
            {"a1": _UNEVEN, "a2": _UNEVEN}
            | {name: "node(s) didn't match Pod's node affinity/selector" for name in ("b1", "bare")},
        ),
        (  # two constraints: zone b is even, and its one host is not
            _pod("web", **_even(_spread(), _spread(_HOST))),
            [_pod("web", "b1"), _pod("web", "a1"), _pod("web", "a1")],
            {"a1": _UNEVEN, "a2": _UNEVEN, "b1": _UNEVEN, "bare": _UNLABELLED},
        ),
    ],
)
def test_each_rule_refuses_what_kube_scheduler_refuses_in_its_words(
    pod: core.Pod, pods: list[core.Pod], refused: dict[str, str]
) -> None:
    assert _refused(pod, pods) == refused


@pytest.mark.parametrize(("policy", "refused"), [(None, {"a1": _UNEVEN}), ("Honor", {})])
def test_a_zone_behind_a_taint_counts_unless_taints_are_honoured(policy: str | None, refused: dict[str, str]) -> None:
    nodes = (_node("a1", zone="a"), _node("b1", zone="b", taints=({"key": "red", "effect": "NoSchedule"},)))
    pod = _pod("web", **_even(_spread(nodeTaintsPolicy=policy)))
    tainted = {"b1": "node(s) had untolerated taint {red: }"}
    assert _refused(pod, [_pod("web", "a1")], nodes) == tainted | refused


def _liked(kind: str, weight: int, app: str = "web") -> dict[str, Any]:
    return {"affinity": {kind: {_PREFERRED: [{"weight": weight, "podAffinityTerm": _term(app)}]}}}


_ANYWAY = _even(_spread(whenUnsatisfiable="ScheduleAnyway"))


@pytest.mark.parametrize(
    ("pod", "pods", "best"),
    [
        (_pod(), [], "a1"),
        (_pod(**_liked("podAffinity", 1)), [_pod("web", "b1")], "b1"),
        (_pod(**_liked("podAntiAffinity", 1)), [_pod("web", "a1")], "b1"),
        (_pod("web"), [_pod("db", "b1", **_liked("podAffinity", 5))], "b1"),
        (_pod("web"), [_pod("db", "a1", **_liked("podAntiAffinity", 5))], "b1"),
        (_pod("web"), [_pod("db", "b1", **_near(_term()))], "b1"),
        (_pod("web", **_ANYWAY), [_pod("web", "a1")], "b1"),
        (_pod("web", **_ANYWAY), [_pod("web", "b1")], "a1"),
        (_pod("web", **_even(_spread(_HOST, whenUnsatisfiable="ScheduleAnyway"))), [_pod("web", "a1")], "a2"),
    ],
)
def test_what_is_preferred_chooses_among_the_nodes_that_fit(pod: core.Pod, pods: list[core.Pod], best: str) -> None:
    found = reference.place(reference.pod_info(pod), _views(_NODES[:3], pods))
    assert (found.node, found.fitting) == (best, 3)


def test_spread_scores_are_kube_schedulers() -> None:
    """By hand: sizes 2 and 3, so weights ln 4 and ln 5; crowd = sum of count * weight; 100 * (max + min - x) / max."""
    pods = [_pod("web", name) for name in ("a1", "a1", "a2", "b1")]
    pod = _pod("web", **_even(*(_spread(key, whenUnsatisfiable="ScheduleAnyway") for key in (_ZONE, _HOST))))
    need, views = reference.pod_info(pod), _views(_NODES, pods)
    tallies = [reference.tally(need, view) for view in views]
    # a1: 3*1.386+2*1.609=7.4 -> 7; a2: 4.16+1.61=5.8 -> 6; b1: 1.386+1.609=3.0 -> 3; bare has no zone.
    assert peers.Survey(need.peer, tallies).scores(tallies) == [(2, [100 * 3 // 7, 100 * 4 // 7, 100, 0])]


# against a plain loop over nodes and pods

_APPS = ("web", "db")
_TERMS = st.builds(
    lambda app, key, more: _term(app, key, **more),
    st.sampled_from(_APPS),
    st.sampled_from([_ZONE, _HOST]),
    st.sampled_from([{}, {"namespaces": ["x"]}, {"namespaceSelector": {}}]),
)
_SPREADS = st.builds(
    lambda key, skew, domains, how: _spread(key, skew=skew, minDomains=domains, whenUnsatisfiable=how),
    st.sampled_from([_ZONE, _HOST]),
    st.integers(1, 2),
    st.sampled_from([None, 3]),
    st.sampled_from(["DoNotSchedule", "ScheduleAnyway"]),
)


def _lists(values: st.SearchStrategy[Any], most: int = 2) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, max_size=most)


def _ruled(
    app: str, node: str, ns: str, near: list[Any], apart: list[Any], spread: list[Any], liked: list[Any]
) -> core.Pod:
    weighed = [{"weight": 10, "podAffinityTerm": one} for one in liked]
    affinity = {"podAffinity": {_REQUIRED: near, _PREFERRED: weighed}, "podAntiAffinity": {_REQUIRED: apart}}
    return _pod(app, node, ns=ns, affinity=affinity, topologySpreadConstraints=spread)


def _pods(*nodes: str) -> st.SearchStrategy[core.Pod]:
    return st.builds(
        _ruled,
        st.sampled_from(_APPS),
        st.sampled_from(nodes),
        st.sampled_from(["default", "x"]),
        _lists(_TERMS, 1),
        _lists(_TERMS, 1),
        _lists(_SPREADS) if nodes == ("",) else st.just([]),
        _lists(_TERMS, 1),
    )


def _about(term: core.PodAffinityTerm, owner: core.Pod, other: core.Pod) -> bool:
    spaces = term.namespaces or ((owner.metadata.namespace,) if term.namespace_selector is None else ())
    assert term.label_selector is not None
    is_there = other.metadata.namespace in spaces or term.namespace_selector is not None
    return is_there and term.label_selector.match_labels["app"] == other.metadata.labels["app"]


def _terms(pod: core.Pod, kind: str) -> tuple[core.PodAffinityTerm, ...]:
    return getattr(pod.spec.affinity, kind).required_during_scheduling_ignored_during_execution  # type: ignore[no-any-return]  # by name


class Truth:
    """Tells whether nodes may have a pod, straight from the rules' definitions."""

    def __init__(self, pod: core.Pod, pods: Sequence[core.Pod]) -> None:
        self.pod, self.pods = pod, pods
        self.where = {node.metadata.name: node.metadata.labels for node in _NODES}

    def fits(self, name: str) -> bool:
        return self._is_even(self.where[name]) and self._is_near(self.where[name]) and self._is_apart(self.where[name])

    def _shares(self, here: Mapping[str, str], key: str, other: core.Pod) -> bool:
        return key in here and self.where[other.spec.node_name].get(key) == here[key]

    def _is_even(self, here: Mapping[str, str]) -> bool:
        every = self.pod.spec.topology_spread_constraints
        rules = [one for one in every if one.when_unsatisfiable == "DoNotSchedule"]
        nodes = {name: to for name, to in self.where.items() if all(one.topology_key in to for one in rules)}
        own = self.pod.metadata.labels["app"] == "web"
        for rule in rules:
            counts = {labels[rule.topology_key]: 0 for labels in nodes.values()}
            for other in self.pods:
                is_same = other.metadata.namespace == self.pod.metadata.namespace
                if is_same and other.metadata.labels["app"] == "web" and other.spec.node_name in nodes:
                    counts[nodes[other.spec.node_name][rule.topology_key]] += 1
            least = 0 if len(counts) < (rule.min_domains or 1) else min(counts.values())
            if rule.topology_key not in here or counts.get(here[rule.topology_key], 0) + own - least > rule.max_skew:
                return False
        return True

    def _is_near(self, here: Mapping[str, str]) -> bool:
        terms = _terms(self.pod, "pod_affinity")
        matching = [other for other in self.pods if all(_about(term, self.pod, other) for term in terms)]
        labels = [self.where[other.spec.node_name] for other in matching]
        is_first = not any(term.topology_key in one for one in labels for term in terms)
        is_first = is_first and all(_about(term, self.pod, self.pod) for term in terms)
        return all(
            term.topology_key in here
            and (is_first or any(self._shares(here, term.topology_key, other) for other in matching))
            for term in terms
        )

    def _is_apart(self, here: Mapping[str, str]) -> bool:
        pairs = [(self.pod, other, other) for other in self.pods] + [(other, self.pod, other) for other in self.pods]
        return not any(
            _about(term, owner, about) and self._shares(here, term.topology_key, there)
            for owner, about, there in pairs
            for term in _terms(owner, "pod_anti_affinity")
        )


@given(pod=_pods(""), pods=st.lists(_pods(*(node.metadata.name for node in _NODES)), max_size=8))
def test_a_plain_loop_finds_the_same_nodes(pod: core.Pod, pods: list[core.Pod]) -> None:
    fitting = {node.metadata.name for node in _NODES if Truth(pod, pods).fits(node.metadata.name)}
    found = reference.place(reference.pod_info(pod), _views(_NODES, pods))
    assert {name for name, _ in found.best} == fitting
    assert found.fitting == len(fitting)


@given(pod=_pods(""), steps=st.lists(st.lists(_pods("a1", "a2", "b1", "bare"), max_size=3), max_size=6))
def test_a_kept_ranking_answers_as_a_placement_made_anew_and_hints_miss_nothing(
    pod: core.Pod, steps: list[list[core.Pod]]
) -> None:
    views = {view.name: view for view in _views(_NODES, ())}
    need = reference.pod_info(pod)
    need = need.among(term for step in steps for one in step for term in peers.of_pod(one).terms)
    kept = ranking.Ranking(need, views)
    names = itertools.cycle([node.metadata.name for node in _NODES])
    last = None
    for name, step in zip(names, ([], *steps), strict=False):
        before = views[name]
        views[name] = reference.occupied(before, [reference.pod_info(one) for one in step])
        kept.mark(name)
        list(kept.refresh(views))
        anew, found = reference.place(need, views.values()), kept.summary()
        assert (found.best, found.fitting, found.message) == (anew.best, anew.fitting, anew.message)
        assert set(found.reasons) == set(anew.reasons)
        if last is False and found.node is not None:
            assert hint.may_help(need, before, views[name])
        last = found.node is not None


def test_a_pod_is_concerned_only_where_a_rule_is_about_it() -> None:
    plain = reference.pod_info(_pod("web"))
    shunning = peers.of_pod(_pod("db", **_apart(_term())))
    assert not plain.among(()).peer.is_concerned
    assert plain.among(shunning.terms).peer.is_concerned
    assert not reference.pod_info(_pod("other")).among(shunning.terms).peer.is_concerned
    assert plain.key() == reference.pod_info(_pod("other")).key()
    assert plain.among(shunning.terms).key() != plain.key()


def test_why_a_pod_waits_names_the_rule_and_counts_pods_on_nodes_that_it_may_not_have() -> None:
    pod = _pod("web", schedulerName="fairlead", nodeSelector={"zone": "a"}, **_apart(_term("db", "all")))
    nodes = [_node("a1", zone="a", all=""), _node("b1", zone="b", all="")]
    assert waiting.why(pod, nodes, [_pod("db", "b1")], ours="fairlead") == (
        f"other pods keep it off every node that has room: {_APART.removeprefix('node(s) ')} (1, such as a1)"
    )
    assert waiting.why(pod, nodes, [], ours="fairlead").startswith("node a1 has room")
    first = _pod(schedulerName="fairlead", **_near(_term()))
    assert waiting.why(first, nodes, [], ours="fairlead").startswith(
        f"other pods keep it off every node that has room: {_NEAR.removeprefix('node(s) ')} (2, such as a1)"
    )


def test_a_malformed_condition_selects_nothing() -> None:
    bad = [{"key": "app", "operator": how, "values": values} for how, values in (("In", []), ("Is", ["web"]))]
    for one in bad:
        term = {"topologyKey": _ZONE, "labelSelector": {"matchExpressions": [one]}}
        assert _refused(_pod(**_apart(term)), [_pod("web", "a1")]) == {}


def test_meta_reads_a_selector_as_it_is_written() -> None:
    text = b'{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"c","operator":"In","values":["d"]}]}'
    assert msgspec.json.encode(msgspec.json.decode(text, type=meta.LabelSelector)) == text
