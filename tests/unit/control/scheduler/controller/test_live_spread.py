"""Pods of a Service or ReplicaSet spread by default where that is asked for; elsewhere they are packed."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from fairlead.plan.schedule import peers
from fairlead.plan.schedule.topology import defaultspread
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import selecting
from tests.unit.control.scheduler.plane import Plane

_HOST, _ZONE = defaultspread.SKEWS


async def _place(plane: Plane, policy: str, *, spread: bool) -> Counter[str]:
    """Place six pods of one ReplicaSet on six nodes of two zones, and return how many each zone got."""
    if policy:
        plane.choose(policy, default_spread=spread)
    for zone in ("z0", "z1"):
        for number in range(3):
            await plane.add_node(f"{zone}-{number}", 8, {_ZONE: zone, _HOST: f"{zone}-{number}"})
    rule = meta.LabelSelector(match_labels={"app": "web"})
    about = meta.ObjectMeta(name="web", namespace="default")
    await plane.store.create(selecting.ReplicaSet(metadata=about, spec=selecting.SelectorSpec(selector=rule)))
    owner = meta.OwnerReference(api_version="apps/v1", kind="ReplicaSet", name="web", uid="u", controller=True)
    for number in range(6):
        made = await plane.add_pod(f"web-{number}", 1, labels={"app": "web"})
        owned = msgspec.structs.replace(made.metadata, owner_references=(owner,))
        await plane.store.update(msgspec.structs.replace(made, metadata=owned))
    async with plane.running():
        bound = await plane.until_bound(f"web-{number}" for number in range(6))
    return Counter(bound[name] for name in bound)


@pytest.mark.parametrize("policy", ["", "packed"])
async def test_replicas_lie_one_on_each_node_where_spread_is_on_and_on_one_node_where_it_is_off(policy: str) -> None:
    assert set((await _place(Plane(default_spread=True), policy, spread=True)).values()) == {1}
    assert list((await _place(Plane(), policy, spread=False)).values()) == [6]


def _selectors(*items: defaultspread.Object) -> defaultspread.Selectors:
    known = defaultspread.Selectors()
    for one in items:
        known.note(one)
    return known


def _pod(owner: str = "", **labels: str) -> core.Pod:
    owners = (
        (meta.OwnerReference(api_version="apps/v1", kind="StatefulSet", name=owner, uid=owner, controller=True),)
        if owner
        else ()
    )
    return core.Pod(metadata=meta.ObjectMeta(name="p", namespace="d", labels=labels, owner_references=owners))


def _service(name: str, namespace: str = "d", **chosen: str) -> selecting.Service:
    about = meta.ObjectMeta(name=name, namespace=namespace)
    return selecting.Service(metadata=about, spec=selecting.LabelsSpec(selector=chosen or None))


def test_the_selectors_of_services_and_of_the_owner_hold_together() -> None:
    about = meta.ObjectMeta(name="set", namespace="d")
    spec = selecting.SelectorSpec(selector=meta.LabelSelector(match_labels={"set": "x"}))
    known = _selectors(
        _service("one", app="web"),
        _service("two", tier="front"),
        _service("other", app="db"),
        _service("none"),
        _service("far", namespace="e", app="web"),
        selecting.StatefulSet(metadata=about, spec=spec),
    )
    found = known.spread(_pod("set", app="web", tier="front", set="x"))
    assert [(one.topology_key, one.max_skew) for one in found] == [(_HOST, 3), (_ZONE, 5)]
    assert {(rule.key, rule.values) for rule in found[0].rules or ()} == {
        ("app", ("web",)),
        ("tier", ("front",)),
        ("set", ("x",)),
    }
    assert not known.spread(_pod(app="none"))
    known.note(_service("one", app="web"), is_gone=True)
    assert not known.spread(_pod(app="web"))


def test_a_pod_with_constraints_of_its_own_has_none_by_default() -> None:
    known, pod = _selectors(_service("one", app="web")), _pod(app="web")
    own = core.TopologySpreadConstraint(max_skew=1, topology_key="x", when_unsatisfiable="ScheduleAnyway")
    assert known.spread(pod)
    assert not known.spread(
        msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, topology_spread_constraints=(own,)))
    )


def test_a_node_without_a_zone_is_judged_by_its_own_pods_alone() -> None:
    """kube-scheduler's figures, worked out by hand: log(5) for three hosts, log(4) for two zones."""
    spread = _selectors(_service("one", app="web")).spread(_pod(app="web"))
    pod = peers.Peer(namespace="d", labels={"app": "web"}, spread=spread).among(())
    tallies = [
        peers.Tally(labels={_HOST: "a", _ZONE: "z0"}, spread=(2, 2), counted=(True, True)),
        peers.Tally(labels={_HOST: "b", _ZONE: "z1"}, spread=(0, 0), counted=(True, True)),
        peers.Tally(labels={_HOST: "c"}, spread=(1, 1), counted=(True, True)),
    ]
    ((_, scores),) = peers.Survey(pod, tallies).scores(tallies)
    # crowds: a: 2 log 5 + 2 + 2 log 4 + 4 = 11.99 -> 12, b: 2 + 4 = 6, c: log 5 + 2 = 3.61 -> 4
    assert scores == [100 * (12 + 4 - crowd) // 12 for crowd in (12, 6, 4)]
