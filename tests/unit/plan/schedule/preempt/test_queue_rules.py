"""Who may be ended for whom, and what a tree of queues that is not one says."""

from __future__ import annotations

from fairlead.plan.schedule.fairshare.ledger import Ledger
from fairlead.plan.schedule.fairshare.tree import Spec, Tree
from fairlead.plan.schedule.preempt import rule
from fairlead.plan.schedule.reference import UNIT, PodInfo
from fairlead.plan.schedule.workloads import Workloads
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import policy, queue

GPU = "nvidia.com/gpu"
STARTED = "2026-01-01T00:00:00Z"


def pod(name: str, node: str = "", *, namespace: str = "red", priority: int = 0, static: bool = False) -> core.Pod:
    about = meta.ObjectMeta(
        name=name,
        namespace=namespace,
        uid=name,
        labels={"app": name},
        annotations={"kubernetes.io/config.mirror": "x"} if static else {},
    )
    wanted = core.ResourceRequirements(requests={GPU: 1})
    main = core.Container(name="main", image="i", resources=wanted)
    spec = core.PodSpec(containers=(main,), node_name=node, priority=priority, scheduler_name="fairlead")
    return core.Pod(metadata=about, spec=spec, status=core.PodStatus(start_time=STARTED if node else None))


def works(*queues: queue.Queue, pods: tuple[core.Pod, ...]) -> Workloads:
    found = Workloads()
    for item in queues:
        found.note_queue(item)
    for one in pods:
        found.put(one)
    return found


def test_only_lower_priority_of_the_own_queue_may_end_and_nothing_for_the_meek() -> None:
    low, high, static = pod("low", "n"), pod("high", "n", priority=9), pod("static", "n", static=True)
    taker = pod("taker", priority=5)
    found = works(pods=(low, high, static, taker))
    need = PodInfo(requests={GPU: UNIT})
    there = rule.running([(one, need) for one in (low, high, static)], found, ())
    now = there[0].started_at + 1000.0
    terms = rule.terms([taker], found, {}, now=now)
    assert [one.name for one in there if terms.may_end(one)] == ["low"]
    spec = core.PodSpec(containers=taker.spec.containers, priority=5, preemption_policy="Never")
    meek = rule.terms([core.Pod(metadata=taker.metadata, spec=spec)], found, {}, now=now)
    assert not any(meek.may_end(one) for one in there)


def test_a_pod_is_not_ended_before_its_queues_minimum_nor_for_itself() -> None:
    low, taker = pod("low", "n"), pod("taker", priority=5)
    spec = queue.QueueSpec(namespaces=("red",), min_runtime_seconds=60)
    found = works(queue.Queue(metadata=meta.ObjectMeta(name="team"), spec=spec), pods=(low, taker))
    (one,) = rule.running([(low, PodInfo(requests={GPU: UNIT}))], found, ())
    assert not rule.terms([taker], found, {}, now=one.started_at + 59).may_end(one)
    assert rule.terms([taker], found, {}, now=one.started_at + 61).may_end(one)
    assert not rule.terms([low], found, {}, now=one.started_at + 61).may_end(one)


def test_budgets_are_those_of_the_pods_namespace_and_labels() -> None:
    rules = [
        policy.PodDisruptionBudget(
            metadata=meta.ObjectMeta(name=name, namespace=namespace),
            spec=policy.BudgetSpec(selector=meta.LabelSelector(match_labels={"app": app})),
            status=policy.BudgetStatus(disruptions_allowed=allowed),
        )
        for name, namespace, app, allowed in (("a", "red", "low", 1), ("b", "blue", "low", -1), ("c", "red", "x", 2))
    ]
    low = pod("low", "n")
    found = works(pods=(low,))
    (one,) = rule.running([(low, PodInfo(requests={GPU: UNIT}))], found, rules)
    assert one.budgets == {"red/a"}
    assert rule.allowed(rules) == {"red/a": 1, "blue/b": 0, "red/c": 2}


def test_a_time_that_a_kubelet_did_not_write_is_none() -> None:
    assert rule.started_at(core.Pod(status=core.PodStatus(start_time="soon"))) == 0.0
    assert rule.started_at(core.Pod()) == 0.0


def test_circles_strangers_and_two_claims_are_problems_and_not_followed() -> None:
    found = Tree(
        [
            Spec(name="a", parent="b", namespaces=("red",)),
            Spec(name="b", parent="a"),
            Spec(name="c", parent="nowhere"),
            Spec(name="d", namespaces=("red",)),
            Spec(name="e", parent="d"),
        ]
    )
    assert found.problems["c"] == 'its parent "nowhere" is not there'
    assert found.problems["d"] == 'namespace "red" is claimed by queue "a" too'
    assert any("is its own ancestor" in found.problems.get(name, "") for name in ("a", "b"))
    assert found.find("red", "nobody")[1].startswith('queue "nobody" is not there (queues: a, ')
    assert found.find("red", "d") == ("", 'queue "d" has queues below it: name one of e')
    assert [found.path(name)[-1] for name in ("c", "e")] == ["c", "d"]
    assert found.fork("e", "e") is None


def test_a_ledger_says_nothing_of_pods_that_it_does_not_know() -> None:
    ledger = Ledger()
    ledger.reset(Tree([Spec(name="team", namespaces=("red",), limit={GPU: 0})]))
    ledger.set_total({GPU: 4 * UNIT})
    ledger.put(pod("one"), {GPU: UNIT})
    ledger.put(pod("lost", namespace="blue"), {GPU: UNIT}, named="gone")
    assert ledger.refusal(["nobody"]) == ""
    assert ledger.refusal(["nobody", "lost"]).startswith('queue "gone" is not there')
    assert "is at its limit" in ledger.refusal(["one"])
    assert not ledger.may_reclaim(["one"], "nobody")
    assert not ledger.may_reclaim([], "one")
    ledger.restore("team", {GPU: 5.0}, 0.0)  # usage is not counted here
    assert not any(ledger.usage().values())


def test_a_queue_that_gave_enough_is_not_beyond_its_share_any_more() -> None:
    ledger = Ledger()
    ledger.reset(
        Tree(
            [
                Spec(name="dept"),
                Spec(name="red", parent="dept", namespaces=("red",)),
                Spec(name="blue", namespaces=("blue",)),
            ]
        )
    )
    ledger.set_total({GPU: 4 * UNIT})
    for number in range(4):
        ledger.put(pod(f"red-{number}", "n"), {GPU: UNIT})
    for number in range(3):
        ledger.put(pod(f"blue-{number}", namespace="blue"), {GPU: UNIT})
    assert ledger.is_over("red-0", {}, "blue")
    assert ledger.is_over("red-0", {"red": {GPU: UNIT}}, "blue")
    assert not ledger.is_over("red-0", {"red": {GPU: 2 * UNIT}}, "blue")
    assert ledger.is_over("red-0", {"blue": {GPU: 2 * UNIT}}, "blue")
    assert ledger.is_over("red-0", {}, "red")
