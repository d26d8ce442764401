"""Who was given what: the kubelet's list, the plugin's memory and statuses put together, and nothing guessed."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.ids import DeviceID
from fairlead.plan.gpu import attribution
from fairlead.plan.gpu.attribution import Call, Grant, Holding
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.proto import deviceplugin_pb2 as pb

GPU = "nvidia.com/gpu"


def pod(
    name: str = "train", *, init: tuple[tuple[str, int], ...] = (), main: tuple[tuple[str, int], ...] = (("main", 1),)
) -> core.Pod:
    def items(wanted: tuple[tuple[str, int], ...]) -> list[dict[str, Any]]:
        return [{"name": item, "resources": {"limits": {GPU: count} if count else {}}} for item, count in wanted]

    spec = {"containers": items(main), "initContainers": items(init)}
    return core.Pod(metadata=meta.ObjectMeta(name=name, namespace="team"), spec=msgspec.convert(spec, core.PodSpec))


def ids(text: str) -> tuple[DeviceID, ...]:
    return tuple(map(DeviceID, text.split()))


def call(text: str, at: float = 0.0, resource: str = GPU) -> Call:
    return Call(resource=resource, ids=ids(text), answer=pb.ContainerAllocateResponse(), at=at, duration_s=0.001)


def held(container: str, text: str, pod: str = "train", resource: str = GPU) -> Holding:
    return Holding(namespace="team", pod=pod, container=container, resource=resource, ids=ids(text))


def match(one: core.Pod, holdings: list[Holding], calls: list[Call]) -> dict[str, tuple[DeviceID, ...]]:
    found = attribution.match_grants(one, holdings, calls, resources=[GPU])
    return {grant.container: grant.ids for grant in found}


def test_a_container_gets_the_call_with_its_ids_in_the_calls_order() -> None:
    calls = [call("a b", 1.0), call("d c", 2.0)]
    (grant,) = attribution.match_grants(pod(main=(("main", 2),)), [held("main", "c d")], calls, resources=[GPU])
    assert grant == Grant(container="main", resource=GPU, asked=2, ids=ids("d c"), call=calls[1])


def test_ids_that_were_given_twice_belong_to_the_latest_call() -> None:
    calls = [call("a", 1.0), call("b", 2.0), call("a", 3.0)]
    (grant,) = attribution.match_grants(pod(), [held("main", "a")], calls, resources=[GPU])
    assert grant.call is calls[2]


def test_a_grant_from_before_the_plugins_memory_has_no_call() -> None:
    (grant,) = attribution.match_grants(pod(), [held("main", "a")], [call("b")], resources=[GPU])
    assert (grant.ids, grant.call) == (ids("a"), None)


def test_an_init_container_is_known_by_the_call_before_that_of_the_container_after_it() -> None:
    one = pod(init=(("first", 1), ("second", 2)), main=(("main", 1),))
    calls = [call("x"), call("a"), call("a b"), call("b"), call("y")]
    assert match(one, [held("main", "b")], calls) == {"first": ids("a"), "second": ids("a b"), "main": ids("b")}


def test_an_init_container_that_used_what_its_successor_uses_gets_the_earlier_call() -> None:
    one = pod(init=(("first", 1),))
    calls = [call("a", 1.0), call("a", 2.0)]
    found = attribution.match_grants(one, [held("main", "a")], calls, resources=[GPU])
    assert [grant.call for grant in found] == calls


def test_a_call_of_another_size_is_no_init_containers() -> None:
    assert match(pod(init=(("first", 2),)), [held("main", "b")], [call("a"), call("b")]) == {"main": ids("b")}


def test_without_the_kubelets_list_nothing_is_attributed() -> None:
    assert match(pod(init=(("first", 1),)), [], [call("a"), call("b")]) == {}
    assert match(pod(), [held("main", "a", pod="other")], [call("a")]) == {}


def test_resources_we_do_not_serve_and_containers_that_ask_for_none_are_left_out() -> None:
    one = pod(main=(("main", 1), ("side", 0)))
    assert [item.name for item, *_ in attribution.requests(one, [GPU])] == ["main"]
    assert list(attribution.requests(one, ["amd.com/gpu"])) == []


def test_a_sidecar_is_listed_and_no_ordinary_init_container() -> None:
    one = pod(init=(("side", 1),))
    side = msgspec.structs.replace(one.spec.init_containers[0], restart_policy="Always")
    one = msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, init_containers=(side,)))
    assert match(one, [held("side", "a"), held("main", "b")], [call("a"), call("b")]) == {
        "side": ids("a"),
        "main": ids("b"),
    }


_NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3, unique=True)


@given(order=st.lists(_NAMES, min_size=1, max_size=6), chosen=st.integers(0, 5))
def test_what_is_attributed_is_what_the_kubelet_lists(order: list[list[str]], chosen: int) -> None:
    wanted = order[chosen % len(order)]
    listed = held("main", " ".join(sorted(wanted)))
    calls = [call(" ".join(names), float(at)) for at, names in enumerate(order)]
    (grant,) = attribution.match_grants(pod(main=(("main", len(wanted)),)), [listed], calls, resources=[GPU])
    assert set(grant.ids) == set(listed.ids)
    assert grant.call is not None
    assert set(grant.call.ids) == set(listed.ids)
    assert not any(set(later.ids) == set(listed.ids) for later in calls[calls.index(grant.call) + 1 :])


# attempts


def status(**more: Any) -> core.Pod:
    one = msgspec.convert({"name": "main", "image": "cuda", **more}, core.ContainerStatus)
    return core.Pod(status=core.PodStatus(container_statuses=(one,)))


def ended(container: str, code: int = 0) -> dict[str, Any]:
    times = {"startedAt": "2026-01-01T00:00:01Z", "finishedAt": "2026-01-01T00:00:04Z"}
    return {"terminated": {"exitCode": code, "containerID": f"containerd://{container}", **times}}


def told(one: core.Pod) -> list[tuple[int, str, bool]]:
    return [(item.number, item.id, item.ended is not None) for item in attribution.attempts(one)]


def test_a_first_run_that_goes_on() -> None:
    one = status(containerID="containerd://c0", state={"running": {"startedAt": "2026-01-01T00:00:01Z"}})
    assert told(one) == [(0, "c0", False)]
    assert attribution.attempts(one)[0].started_at == meta.timestamp("2026-01-01T00:00:01Z")


def test_a_restarted_container_tells_of_its_last_run_too() -> None:
    one = status(containerID="containerd://c3", restartCount=3, state={"running": {}}, lastState=ended("c2"))
    assert told(one) == [(2, "c2", True), (3, "c3", False)]


def test_while_it_waits_to_be_started_again_its_last_run_is_the_one_counted() -> None:
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    assert told(status(containerID="containerd://c2", restartCount=2, state=waits, lastState=ended("c2", 1))) == [
        (2, "c2", True)
    ]


def test_a_container_that_was_never_made_has_no_attempt() -> None:
    assert told(status(state={"waiting": {"reason": "ContainerCreating"}})) == []


def test_a_length_that_whole_seconds_do_not_show_is_not_told() -> None:
    (attempt,) = attribution.attempts(status(containerID="containerd://c0", state=ended("c0")))
    assert attempt.ended is not None
    assert attribution.ran_s(attempt.ended) == 3
    assert attribution.ran_s(msgspec.structs.replace(attempt.ended, finished_at=attempt.ended.started_at)) is None
