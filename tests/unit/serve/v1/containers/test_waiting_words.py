"""Why a container waits, in a person's words: what is free, who has the rest since when, the place in the queue."""

from __future__ import annotations

import datetime as dt
from typing import Any

import msgspec
import pytest

from fairlead.plan.schedule import reference
from fairlead.plan.schedule.shard import running
from fairlead.serve.v1.containers import waitview
from fairlead.serve.v1.containers.life import waiting
from fairlead.wire.kubernetes import core

_GPU = "nvidia.com/gpu"
_NOW = dt.datetime(2026, 11, 22, 12, 0, tzinfo=dt.UTC)


def _at(minutes: float) -> str:
    return (_NOW - dt.timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _pod(
    name: str, gpus: int = 1, node: str = "", *, minutes: float = 1, namespace: str = "default", **spec: Any
) -> core.Pod:
    limits = {_GPU: gpus} if gpus else {}
    limits |= spec.pop("limits", {})
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    body = {"containers": [container], "nodeName": node, "schedulerName": "fairlead", **spec}
    about = {
        "name": name,
        "namespace": namespace,
        "uid": name,
        "creationTimestamp": _at(minutes),
    }
    status = {"phase": "Running", "startTime": _at(minutes)} if node else {"phase": "Pending"}
    return msgspec.convert({"metadata": about, "spec": body, "status": status}, core.Pod)


def _node(name: str = "one", gpus: int = 8, healthy: int | None = None, **spec: Any) -> core.Node:
    amounts = {_GPU: str(gpus), "cpu": "4", "memory": "32Gi", "pods": "110"}
    status = {
        "capacity": amounts,
        "allocatable": amounts | {_GPU: str(gpus if healthy is None else healthy)},
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    return msgspec.convert({"metadata": {"name": name}, "spec": spec, "status": status}, core.Node)


def _described(
    pod: core.Pod, nodes: list[core.Node], pods: list[core.Pod], *, caller: waitview.Caller = waitview.EVERYTHING
) -> waiting.Waiting | None:
    return waitview.describe(pod, waitview.Census(nodes, pods, ours="fairlead"), now=_NOW, caller=caller)


def _words(pod: core.Pod, nodes: list[core.Node], others: list[core.Pod]) -> str:
    found = _described(pod, nodes, [pod, *others])
    return "" if found is None else found.message


def _with_port(name: str, port: int, node: str = "", *, address: str = "", namespace: str = "default") -> core.Pod:
    published = {"containerPort": 80, "hostPort": port, "hostIP": address}
    container = {"name": "main", "ports": [published]}
    return _pod(name, 0, node, minutes=3, namespace=namespace, containers=[container])


def test_a_port_that_is_taken_is_named_with_who_has_it() -> None:
    web = _with_port("web", 8080, "one")
    found = _described(_with_port("me", 8080), [_node()], [web])
    assert found is not None
    assert (found.reason, found.message) == (waiting.PORT, "waiting for port 8080: held by web (3 min)")
    two = _words(_with_port("me", 8080), [_node(), _node("b", 0, unschedulable=True)], [web])
    assert two == "waiting for port 8080 on one: held by web (3 min)"


def test_a_port_that_another_tenancy_has_names_none_of_its_containers() -> None:
    caller = waitview.Caller(
        name="ann", whose=lambda namespace, name: (namespace, name) if namespace == "a" else ("", "")
    )
    found = _described(
        _with_port("me", 8080, namespace="a"), [_node()], [_with_port("web", 8080, "one", namespace="b")], caller=caller
    )
    assert found is not None
    assert found.message == "waiting for port 8080: held by another tenancy"
    assert [one.name for one in found.holders] == [""]


def test_a_port_of_another_address_is_free() -> None:
    found = _words(
        _with_port("me", 8080, address="127.0.0.1"), [_node()], [_with_port("web", 8080, "one", address="10.0.0.1")]
    )
    assert "port" not in found


_BIG = _pod("big", 6, "one", minutes=17)


@pytest.mark.parametrize(
    ("pod", "nodes", "others", "said"),
    [
        (
            _pod("me", 4),
            [_node()],
            [_BIG, _pod("earlier", 3, minutes=5)],
            "waiting for 4 GPUs: 2 of 8 are free; 6 held by big (17 min); 2nd in the queue",
        ),
        (
            _pod("me", 4),
            [_node()],
            [_BIG, _pod("impossible", 9, minutes=5)],
            "waiting for 4 GPUs: 2 of 8 are free; 6 held by big (17 min); 1st in the queue",
        ),
        (_pod("me", 9), [_node()], [], "will never fit: 9 asked, this machine has 8"),
        (_pod("me", 9), [_node(), _node("b", 4)], [], "will never fit: 9 asked, the largest of 2 nodes has 8"),
        (
            _pod("me", 1),
            [_node(gpus=0)],
            [],
            "will never fit: 1 GPU asked, this machine has no GPU",
        ),
        (
            _pod("me", 8),
            [_node(healthy=7)],
            [],
            "waiting for 8 GPUs: 7 of 8 are free; 1 not healthy (`fairlead doctor`); 1st in the queue",
        ),
        (
            _pod("me", 8),
            [_node()],
            [_pod("a", 4, "one", minutes=300), _pod("b", 3, "one", minutes=3), _pod("c", 1, "one", minutes=0.5)],
            "waiting for 8 GPUs: 0 of 8 are free; 4 held by a (5 h), 3 by b (3 min), 1 by c (30 s); 1st in the queue",
        ),
        (
            _pod("me", 8),
            [_node(), _node("two")],
            [_BIG, _pod("other", 1, "two", namespace="team", minutes=9)],
            "waiting for 8 GPUs: 7 of 8 are free on two; 1 held by team/other (9 min); 1st in the queue",
        ),
        (
            _pod("me", 0, limits={"memory": "24Gi"}),
            [_node()],
            [_pod("fat", 0, "one", limits={"memory": "20Gi"}, minutes=4)],
            "waiting for 24 GiB of memory: 12 GiB of 32 GiB are free; 20 GiB held by fat (4 min); 1st in the queue",
        ),
        (_pod("me", 2), [_node()], [_BIG], "there is room: the scheduler places it in its next round"),
        (_pod("me", 1, schedulingGates=[{"name": "x/y"}]), [_node()], [], "its scheduling gates hold it: x/y"),
        (
            _pod("me", 1, nodeSelector={"a": "b"}),
            [_node()],
            [],
            "it will never fit as things are",
        ),
        (_BIG, [_node()], [], ""),
    ],
)
def test_each_wait_has_its_words(pod: core.Pod, nodes: list[core.Node], others: list[core.Pod], said: str) -> None:
    words = _words(pod, nodes, others)
    assert words == said or (said.endswith("things are") and words.startswith(said))


def test_a_higher_priority_stands_before_who_came_earlier() -> None:
    early, urgent = _pod("early", 8, minutes=60), _pod("urgent", 8, minutes=1, priority=100)
    found = _described(urgent, [_node()], [early, urgent, _BIG])
    assert found is not None
    assert (found.place, found.queued) == (1, 2)


def test_numbers_and_a_stable_reason_stand_beside_the_words() -> None:
    found = _described(_pod("me", 4), [_node()], [_pod("me", 4), _BIG])
    assert found is not None
    told = msgspec.to_builtins(found)
    assert (told["reason"], told["resource"], told["asked"], told["free"], told["total"]) == (
        "WaitingForDevices",
        _GPU,
        4,
        2,
        8,
    )
    assert list(told["holders"]) == [{"namespace": "default", "name": "big", "count": 6, "since": _at(17)}]


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (21, "21st")]
)
def test_places_are_ordinals(number: int, word: str) -> None:
    assert waiting.ordinal(number) == word


def _user(namespace: str, *, names_others: bool = True) -> waitview.Caller:
    """Return the caller who has one namespace."""
    hidden = (lambda other: other) if names_others else (lambda _other: "")
    return waitview.Caller(
        name=namespace, whose=lambda one, name: (one, name) if one == namespace else (hidden(one), "")
    )


def test_a_member_of_a_tenancy_reads_nothing_of_others_but_how_many_they_have() -> None:
    me, mine = _pod("me", 4, namespace="red"), _pod("mine", 1, "one", minutes=3, namespace="red")
    others = [_pod("secret", 4, "one", minutes=17, namespace="t-speech"), _pod("b", 1, "one", namespace="default")]
    found = _described(me, [_node()], [me, mine, *others], caller=_user("red", names_others=False))
    assert found is not None
    said = "waiting for 4 GPUs: 2 of 8 are free; 1 held by mine (3 min), 5 by another tenancy; 1st in the queue"
    assert found.message == said
    assert [(one.namespace, one.name, one.count) for one in found.holders] == [("red", "mine", 1), ("", "", 5)]


def test_a_user_reads_whose_gpus_are_taken_and_not_what_runs_on_them() -> None:
    me, other = _pod("me", 4, namespace="user-1"), _pod("secret", 6, "one", minutes=17, namespace="user-2")
    found = _described(me, [_node()], [me, other], caller=_user("user-1"))
    assert found is not None
    assert found.message == "waiting for 4 GPUs: 2 of 8 are free; 6 held by user-2 (17 min); 1st in the queue"
    assert [(one.namespace, one.name) for one in found.holders] == [("user-2", "")]


def test_what_is_not_about_amounts_is_said_in_words_too() -> None:
    found = _described(_pod("late", 0), [_node(unschedulable=True)], [])
    assert found is not None
    assert found.reason == waiting.OTHER
    assert "closed to new containers" in found.message


def test_where_a_label_keeps_it_off_no_amount_is_complained_of() -> None:
    found = _described(_pod("me", 9, nodeSelector={"zone": "b"}), [_node()], [])
    assert found is not None
    assert found.reason == waiting.OTHER


def test_a_resource_that_was_renamed_is_named_with_what_is_offered_in_its_place() -> None:
    shared = msgspec.structs.replace(_node(gpus=0).status, allocatable={"nvidia.com/gpu.shared": "4"}, capacity={})
    node = msgspec.structs.replace(_node(gpus=0), status=shared)
    assert _words(_pod("me", 1), [node], []).endswith("; offered in its place: nvidia.com/gpu.shared")


@pytest.mark.parametrize("labels", [{}, {"zone": "b"}])
def test_a_list_of_many_that_wait_judges_each_a_few_times_not_once_for_each_other(
    labels: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, judge = 0, reference.pod_info

    def counted(pod: core.Pod, *more: Any) -> reference.PodInfo:
        nonlocal judged
        judged += 1
        return judge(pod, *more)

    monkeypatch.setattr(reference, "pod_info", counted)
    running = [_pod(f"on-{number}", 1, "one") for number in range(8)]
    many = [_pod(f"waits-{number}", 1, nodeSelector=labels) for number in range(100)]
    census = waitview.Census([_node()], [*running, *many], ours="fairlead")
    found = [waitview.describe(pod, census, now=_NOW) for pod in many]
    places = sorted(one.place for one in found if one is not None)
    assert places == ([0] * len(many) if labels else list(range(1, len(many) + 1)))
    assert judged <= 4 * (len(running) + len(many))


def test_a_census_that_is_kept_tells_once_a_second_and_only_of_its_own_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = 0
    judge = waitview._described

    def counted(pod: core.Pod, census: waitview.Census, **how: Any) -> waiting.Waiting:
        nonlocal judged
        judged += 1
        return judge(pod, census, **how)

    monkeypatch.setattr(waitview, "_described", counted)
    waits, other = _pod("second", 4), _pod("second", 4)
    census = waitview.Census([_node()], [_pod("r", 8, "one"), waits], ours="fairlead")
    for now in (_NOW, _NOW + dt.timedelta(milliseconds=900), _NOW + dt.timedelta(seconds=1)):
        assert waitview.describe(waits, census, now=now) is not None
    assert judged == 2
    for _ in range(2):
        assert waitview.describe(other, census, now=_NOW) is not None
    assert judged == 4
    (masked,) = [waitview.describe(waits, census, now=_NOW, caller=_user("another"))]
    assert masked is not None
    assert [one.name for one in masked.holders] == [""]


def test_an_estimate_is_made_of_time_limits_and_of_who_is_ahead() -> None:
    limited: Any = {"activeDeadlineSeconds": 3600, "terminationGracePeriodSeconds": 0}
    ends = [_pod(f"r{number}", 4, "one", minutes=10 * number, **limited) for number in (1, 2)]
    waits = [_pod("first", 4, minutes=5), _pod("second", 4, minutes=4), _pod("third", 4, minutes=3)]
    census = waitview.Census([_node()], [*ends, *waits], ours="fairlead")
    told = [waitview.describe(one, census, now=_NOW) for one in waits]
    assert [one.estimate if one else "" for one in told] == [
        "2026-11-22T12:40:00Z",
        "2026-11-22T12:50:00Z",
        None,  # nothing says when those end who are still to start
    ]
    assert told[0] is not None
    assert told[0].message.endswith("1st in the queue; free in 40 min at the latest, by time limits")


def test_nothing_is_estimated_where_nothing_limits_what_runs() -> None:
    waits = _pod("second", 4)
    census = waitview.Census([_node()], [_pod("r", 8, "one"), waits], ours="fairlead")
    told = waitview.describe(waits, census, now=_NOW)
    assert told is not None
    assert told.estimate is None


_LABEL = "example.com/pool"
_DIVIDED = running.Shards(_LABEL, frozenset({"", "a"}), "fairlead")


def _in_pool(item: Any, pool: str) -> Any:
    return msgspec.structs.replace(item, metadata=msgspec.structs.replace(item.metadata, labels={_LABEL: pool}))


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        (_in_pool(_pod("me", 4), "a"), f'will never fit: 4 asked, this machine has 2 (of the nodes with {_LABEL} "a")'),
        (_in_pool(_pod("me", 4), "b"), f'no scheduler runs for pods of {_LABEL} "b" (pools with one: "", "a"): '),
        (_pod("me", 4), "there is room: the scheduler places it in its next round"),
        (_pod("me", 9), f"will never fit: 9 asked, this machine has 8 (of the nodes without {_LABEL})"),
    ],
)
def test_only_the_nodes_of_the_pods_own_scheduler_count(pod: core.Pod, said: str) -> None:
    nodes = [_in_pool(_node("small", 2), "a"), _in_pool(_node("big", 8), "b"), _node("rest", 8)]
    census = waitview.Census(nodes, [pod], ours="fairlead", shards=_DIVIDED)
    found = waitview.describe(pod, census, now=_NOW)
    assert found is not None
    assert found.message.startswith(said)


def test_the_diagnosis_of_a_divided_cluster_is_of_the_pods_pool() -> None:
    nodes, pod = [_in_pool(_node("a", 2), "a"), _node("rest", 8)], _in_pool(_pod("me", 4), "a")
    census = waitview.Census(nodes, [pod], ours="fairlead", shards=_DIVIDED)
    assert waitview.why(pod, census).endswith(f'the largest node has 2 (of the nodes with {_LABEL} "a")')
    lost = _in_pool(_pod("me", 4), "x")
    assert waitview.why(lost, census).startswith(f'no scheduler runs for pods of {_LABEL} "x"')


def test_a_label_that_no_node_has_is_named_with_what_it_has() -> None:
    node = _node()
    node = msgspec.structs.replace(node, metadata=msgspec.structs.replace(node.metadata, labels={"gpu": "h100"}))
    words = _words(_pod("a", nodeSelector={"gpu": "a100", "zone": "x"}), [node], [])
    assert "gpu=a100 (it has gpu=h100), zone=x (it has no zone)" in words
    term = {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100", "l40"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    assert "gpu In a100 l40 (it has gpu=h100)" in _words(_pod("b", affinity={"nodeAffinity": required}), [node], [])


def _refused_claim(pod: core.Pod) -> core.Pod:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    words = "0 of 1 nodes fit: cannot allocate all claims: <extended-resources> wants 4 of 8 devices, and 2 fit"
    status = msgspec.to_builtins(pod.status) | {"conditions": [said | {"message": words}]}
    return msgspec.structs.replace(pod, status=msgspec.convert(status, core.PodStatus))


def test_of_gpus_that_claims_meet_the_scheduler_says_what_is_lacking() -> None:
    pod = _refused_claim(_pod("a", 4))
    served = waitview.Census([_node(gpus=0)], [pod], ours="fairlead", served=frozenset({_GPU}))
    found = waitview.describe(pod, served, now=_NOW)
    assert found is not None
    assert found.reason == waiting.OTHER
    assert "<extended-resources> wants 4 of 8 devices" in found.message
    assert "wants 4 of 8 devices" in waitview.why(pod, served)
    plain = waitview.describe(pod, waitview.Census([_node(gpus=0)], [pod], ours="fairlead"), now=_NOW)
    assert plain is not None
    assert plain.reason == waiting.NEVER


def test_where_the_scheduler_makes_no_such_claims_its_words_are_said() -> None:
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    words = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
    status = msgspec.convert({"phase": "Pending", "conditions": [said | {"message": words}]}, core.PodStatus)
    pod = msgspec.structs.replace(_pod("a", 4), status=status)
    served = waitview.Census([_node(gpus=0)], [pod], ours="fairlead", served=frozenset({_GPU}))
    found = waitview.describe(pod, served, now=_NOW)
    assert found is not None
    assert "room" not in found.message
    assert "nvidia.com/gpu" in found.message or "GPU" in found.message


def test_where_nodes_of_both_kinds_are_no_amount_is_said_to_never_fit() -> None:
    pod, nodes = _pod("a", 8), [_node(gpus=4), _node("two", gpus=0)]
    alone = waitview.describe(pod, waitview.Census(nodes, [pod], ours="fairlead"), now=_NOW)
    assert alone is not None
    assert alone.reason == waiting.NEVER
    served = waitview.Census(nodes, [pod], ours="fairlead", served=frozenset({_GPU}))
    both = waitview.describe(pod, served, now=_NOW)
    assert both is not None
    assert both.reason != waiting.NEVER
