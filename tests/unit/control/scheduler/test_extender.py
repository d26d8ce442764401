"""The extender's answers: which nodes, worth what, bound, and which evictions make room."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead import errors
from fairlead.control.scheduler.extender import Extender
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.plan.schedule.rankings import PlainRankings, Rankings
from fairlead.serve import calls
from fairlead.store.embedded.memory import MemoryStore
from fairlead.store.embedded.placement import EmbeddedPlacement
from fairlead.store.port import Change, ChangeKind
from fairlead.wire.kubernetes import core, meta

_GPU = "nvidia.com/gpu"


def _pod(name: str, gpus: int, node: str = "", **spec: Any) -> core.Pod:
    main = core.Container(name="main", image="i", resources=core.ResourceRequirements(requests={_GPU: gpus}))
    about = meta.ObjectMeta(name=name, namespace="default", uid=f"uid-{name}")
    return core.Pod(metadata=about, spec=core.PodSpec(containers=(main,), node_name=node, **spec))


def _node(name: str, **spec: Any) -> core.Node:
    ready = meta.Condition(type="Ready", status="True")
    status = core.NodeStatus(allocatable={_GPU: "8", "pods": "110"}, conditions=(ready,))
    return core.Node(metadata=meta.ObjectMeta(name=name, uid=name), spec=core.NodeSpec(**spec), status=status)


@pytest.fixture(params=[PlainRankings, EngineRankings])
def rankings(request: pytest.FixtureRequest) -> Rankings:
    made: Rankings = request.param("packed")
    return made


class World:
    """An extender over a store, with four nodes."""

    def __init__(self, rankings: Rankings) -> None:
        self.store = MemoryStore()
        self.extender = Extender(EmbeddedPlacement(self.store), rankings)
        for node in (_node("a"), _node("b"), _node("tainted", taints=(core.Taint(key="red"),)), _node("c")):
            self.note(node)
        self.note(_pod("there", 6, "b"))
        self.note(_pod("full", 8, "c"))

    def note(self, item: core.Pod | core.Node | core.Namespace) -> None:
        watch = next(one for one in self.extender.watches() if one.kind is type(item))
        tuple(watch.keys(Change(kind=ChangeKind.ADDED, object=item)))

    async def call(self, path: str, **content: Any) -> Any:
        found = await self.extender.calls[path](json.dumps(content).encode())
        return json.loads(found)


def _asked(pod: core.Pod) -> Any:
    return json.loads(meta.encode(pod))


_NAMES = ["a", "b", "c", "tainted", "unheard-of"]


async def test_nodes_are_left_out_with_the_reason_and_whether_an_eviction_would_help(rankings: Rankings) -> None:
    found = await World(rankings).call("/filter", Pod=_asked(_pod("p", 2)), Nodes=None, NodeNames=_NAMES)
    assert found["NodeNames"] == ["a", "b"]
    assert found["FailedNodes"] == {
        "c": f"Insufficient {_GPU}",
        "unheard-of": "the extender does not know the node yet",
    }
    assert found["FailedAndUnresolvableNodes"] == {"tainted": "node(s) had untolerated taint {red: }"}


async def test_the_policys_best_node_has_the_highest_score(rankings: Rankings) -> None:
    found = await World(rankings).call("/prioritize", Pod=_asked(_pod("p", 2)), NodeNames=["a", "b"])
    assert found == [{"Host": "a", "Score": 0}, {"Host": "b", "Score": 10}]


async def test_a_binding_counts_before_its_echo_and_a_refused_one_does_not(rankings: Rankings) -> None:
    world = World(rankings)
    pod = await world.store.create(_pod("p", 2))
    world.note(pod)
    order = {"PodName": "p", "PodNamespace": "default", "PodUID": pod.metadata.uid, "Node": "b"}
    assert await world.call("/bind", **order) == {"Error": ""}
    assert (await world.store.get(core.Pod, "p", "default")).spec.node_name == "b"
    found = await world.call("/filter", Pod=_asked(_pod("q", 2)), NodeNames=["a", "b"])
    assert found["NodeNames"] == ["a"]
    gone = _pod("gone", 1)
    world.note(gone)
    order = {"PodName": "gone", "PodNamespace": "default", "PodUID": gone.metadata.uid, "Node": "a"}
    assert "gone" in (await world.call("/bind", **order))["Error"]
    found = await world.call("/filter", Pod=_asked(_pod("q", 8)), NodeNames=["a"])
    assert found["NodeNames"] == ["a"]


async def test_an_eviction_is_agreed_to_only_where_the_pod_fits_afterwards(rankings: Rankings) -> None:
    world = World(rankings)
    victims = {
        "b": {"Pods": [{"UID": "uid-there"}], "NumPDBViolations": 1},
        "c": {"Pods": [], "NumPDBViolations": 0},
        "tainted": {"Pods": None, "NumPDBViolations": 0},
    }
    found = await world.call("/preempt", Pod=_asked(_pod("p", 8)), NodeNameToMetaVictims=victims)
    assert found == {"NodeNameToMetaVictims": {"b": victims["b"]}}


async def test_kube_scheduler_must_send_names(rankings: Rankings) -> None:
    found = await World(rankings).call("/filter", Pod=_asked(_pod("p", 2)), Nodes={"items": []}, NodeNames=None)
    assert found["Error"] == "set nodeCacheCapable: true for this extender"


async def test_what_cannot_be_read_is_a_protocol_error(rankings: Rankings) -> None:
    for body in (b"", b"[]", b'{"Pod": 3}', b"\xff", b"[" * 10000):
        with pytest.raises(errors.ProtocolError, match="cannot be read"):
            await World(rankings).extender.calls["/filter"](body)


async def test_nothing_is_answered_before_pods_and_nodes_are_known(rankings: Rankings) -> None:
    one = Extender(EmbeddedPlacement(MemoryStore()), rankings)
    assert one.problem() == "the pods and nodes of the cluster are not known yet"
    for watch in one.watches():
        if not watch.is_optional:
            assert one.problem()
            assert watch.reset is not None
            watch.reset()
    assert one.problem() == ""


async def _http(
    path: str, *parts: bytes, method: str = "POST", ready: str = "", kind: bytes = b"application/json; charset=utf-8"
) -> tuple[int, bytes]:
    async def echo(body: bytes) -> bytes:
        if body == b"bad":
            raise errors.Invalid("no good", reason="Bad")
        return body

    waiting, said = list(parts), list[Any]()

    async def receive() -> Any:
        part = waiting.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(waiting)}

    async def send(message: Any) -> None:
        said.append(message)

    await calls.create_app({"/echo": echo}, lambda: ready)(
        {"path": path, "method": method, "headers": [(b"content-type", kind)]}, receive, send
    )
    return said[0]["status"], said[1]["body"]


async def test_calls_are_posts_to_known_paths_of_a_bounded_size() -> None:
    assert await _http("/echo", b"a", b"b") == (200, b"ab")
    assert (await _http("/other", b"a"))[0] == 404
    assert (await _http("/echo", b"a", method="GET"))[0] == 405
    assert (await _http("/echo", *[bytes(1 << 20)] * 9))[0] == 413
    assert (await _http("/echo", b"a", ready="not yet")) == (503, b"not yet\n")
    assert (await _http("/echo", b"bad"))[0] == 422


async def test_a_call_that_a_page_in_a_browser_could_make_is_refused() -> None:
    for kind in (b"text/plain", b"application/x-www-form-urlencoded", b""):
        assert (await _http("/echo", b"a", kind=kind))[0] == 415


async def test_kube_scheduler_gets_no_node_for_a_pod_of_a_tenancy_that_is_not_ready(rankings: Rankings) -> None:
    world = World(rankings)
    about = meta.ObjectMeta(name="default", labels={"fairlead.dev/tenancy-uid": "1"})
    world.note(core.Namespace(metadata=about))
    found = await world.call("/filter", Pod=_asked(_pod("p", 2)), Nodes=None, NodeNames=["a", "b"])
    assert found.get("NodeNames", []) in ([], None)
    assert found["FailedNodes"] == dict.fromkeys(["a", "b"], "the tenancy of namespace default is Pending, not Ready")
    bound = await world.call("/bind", PodName="p", PodNamespace="default", PodUID="uid-p", Node="a")
    assert "not Ready" in bound["Error"]
