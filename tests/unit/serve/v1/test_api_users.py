"""What the API leaves to a caller who is not root: containers of their own, and nothing that is root's."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import msgspec
import pytest

from fairlead.kernel import socketpeer
from fairlead.serve import peer
from fairlead.serve.v1 import dependencies
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.coordination import PriorityClass
from tests.unit.serve.world import RESOURCE, World, application, in_process

ANN, BEN = 1001, 1002
As = Callable[[int | None], httpx.AsyncClient]


def connected(inner: Any, uid: int | None) -> Any:
    """Put into the scope what the server puts there for a connection of that user."""

    async def called(scope: Any, receive: Any, send: Any) -> None:
        caller = None if uid is None else socketpeer.Peer(pid=1, uid=uid, gid=uid)
        await inner({**scope, "state": {peer.KEY: caller}}, receive, send)

    return called


@pytest.fixture
def as_user(world: World) -> As:
    """A client of each user of one machine, who may hold two GPUs."""
    callers = dependencies.Callers(most_devices=2, masters=frozenset({0}))
    made = application(replace(world.services, callers=callers))

    def client(uid: int | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=in_process(connected(made, uid)), base_url="http://test")

    return client


_LASTING: dict[str, Any] = {"command": ["sleep", "60"]}


async def _run(client: httpx.AsyncClient, name: str, **more: Any) -> httpx.Response:
    return await client.post("/v1/containers", json={"image": "demo", "name": name, **more})


async def _names(client: httpx.AsyncClient, **query: str) -> list[str]:
    answer = await client.get("/v1/containers", params={"all": "true", **query})
    return [item["name"] for item in answer.json()["items"]]


async def test_two_users_use_one_name_and_each_sees_their_own(as_user: As) -> None:
    for uid in (ANN, BEN):
        made = await _run(as_user(uid), "train")
        assert (made.status_code, made.json()["namespace"]) == (201, f"user-{uid}")
    assert await _names(as_user(ANN)) == ["train"]
    assert await _names(as_user(BEN), namespace="default") == ["train"]
    assert await _names(as_user(0)) == ["train", "train"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/logs"),
        ("GET", "/events"),
        ("GET", "/trace"),
        ("GET", "/explain"),
        ("GET", "/wait?timeout=0"),
        ("DELETE", ""),
        ("POST", ":stop"),
    ],
)
async def test_another_users_container_is_out_of_reach(as_user: As, method: str, path: str) -> None:
    assert (await _run(as_user(BEN), "theirs")).status_code == 201
    own = await as_user(ANN).request(method, f"/v1/containers/theirs{path}")
    assert (own.status_code, own.json()["reason"]) == (404, "ContainerNotFound")
    named = f"{path}{'&' if '?' in path else '?'}namespace=user-{BEN}"
    other = await as_user(ANN).request(method, f"/v1/containers/theirs{named}")
    assert (other.status_code, other.json()["reason"]) == (403, "NamespaceForbidden")
    # A namespace that is not there is refused in the same words: nothing is learned.
    none = await as_user(ANN).request(method, f"/v1/containers/theirs{named.replace(str(BEN), 'nobody')}")
    assert (none.status_code, none.json()["reason"]) == (403, "NamespaceForbidden")
    assert await _names(as_user(BEN)) == ["theirs"]


@pytest.mark.parametrize("field", ["namespace", "tenancy"])
async def test_a_container_goes_into_no_other_namespace(as_user: As, field: str) -> None:
    for place in (f"user-{BEN}", "kube-system", "user-0"):
        answer = await _run(as_user(ANN), "mine", **{field: place})
        assert (answer.status_code, answer.json()["reason"]) == (403, "NamespaceForbidden"), place


async def _manifest(client: httpx.AsyncClient, spec: dict[str, Any], **about: Any) -> httpx.Response:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", **about},
        "spec": {"containers": [{"name": "main", "image": "demo"}], **spec},
    }
    return await client.post("/v1/pods", content=json.dumps(pod))


@pytest.mark.parametrize(
    ("spec", "about", "words"),
    [
        ({"volumes": [{"name": "v", "hostPath": {"path": "/home/ann"}}]}, {}, "/home/ann"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]}, {}, "/etc"),
        ({"hostNetwork": True}, {}, "hostNetwork"),
        ({"hostPID": True}, {}, "hostPID"),
        ({"hostIPC": True}, {}, "hostIPC"),
        ({"nodeName": "one"}, {}, "spec.nodeName"),
        ({"priority": 1000}, {}, "priority"),
        ({"priorityClassName": "system-node-critical"}, {}, "priority"),
        ({}, {"finalizers": ["a.b/c"]}, "finalizers"),
        (
            {},
            {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]},
            "ownerReferences",
        ),
        ({}, {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}, "annotation"),
        ({}, {"annotations": {"fairlead.dev/step": "{}"}}, "fairlead.dev"),
        ({}, {"labels": {"fairlead.dev/tenancy": "x"}}, "fairlead.dev"),
        ({}, {"namespace": f"user-{BEN}"}, "is not yours"),
    ],
)
async def test_a_user_may_not_ask_for_what_is_roots(
    as_user: As, spec: dict[str, Any], about: dict[str, Any], words: str
) -> None:
    answer = await _manifest(as_user(ANN), spec, **about)
    assert (answer.status_code, words in answer.json()["detail"]) == (403, True), answer.text
    assert await _names(as_user(0)) == []


@pytest.mark.parametrize(
    "context",
    [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}, {"procMount": "Unmasked"}],
)
async def test_a_user_gets_no_rights_over_the_host(as_user: As, context: dict[str, Any]) -> None:
    box = {"name": "main", "image": "demo", "securityContext": context}
    answer = await _manifest(as_user(ANN), {"containers": [box]})
    assert (answer.status_code, answer.json()["reason"]) == (403, "TenantPodForbidden")


async def test_ports_of_root_stay_roots(as_user: As) -> None:
    for number, status in ((22, 403), (1023, 403), (8080, 201)):
        answer = await _run(as_user(ANN), f"p{number}", ports=[{"host_port": number, "container_port": 80}])
        assert answer.status_code == status, answer.text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/images:import", {"path": "/etc", "name": "loot"}),
        ("POST", "/v1/images:build", {"context": "/root", "name": "loot"}),
        ("DELETE", "/v1/images?name=demo", None),
        ("POST", "/v1/faults", {"fault": "xid", "gpu": 0, "value": "79"}),
        ("POST", "/v1/containers/mine:attach", {"gpu": "1"}),
        ("POST", "/v1/containers/mine:detach", {"gpu": "1"}),
        ("DELETE", "/v1/quotas/gpus", None),
        ("PUT", "/v1/quotas", {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}, "spec": {}}),
    ],
)
async def test_what_concerns_the_machine_is_roots(as_user: As, method: str, path: str, body: Any) -> None:
    await _run(as_user(ANN), "mine")
    answer = await as_user(ANN).request(method, path, json=body)
    assert (answer.status_code, answer.json()["reason"]) == (403, "RootOnly"), answer.text


async def test_users_hold_as_many_gpus_as_the_machine_allows_and_root_may_say_otherwise(as_user: As) -> None:
    ann, root = as_user(ANN), as_user(0)
    assert (await _run(ann, "two", gpus=2, **_LASTING)).status_code == 201
    refused = await _run(ann, "third", gpus=1, **_LASTING)
    assert (refused.status_code, "more than the quota" in refused.json()["detail"]) == (403, True)
    # Through a manifest, and by another resource's name, it is the same.
    box = {"name": "main", "image": "demo", "resources": {"limits": {"nvidia.com/mig-1g.10gb": "3"}}}
    assert (await _manifest(ann, {"containers": [box]})).status_code == 403
    assert (await _run(as_user(BEN), "two", gpus=2, **_LASTING)).status_code == 201
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": f"user-{ANN}"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "3"}},
    }
    assert (await root.put("/v1/quotas", content=json.dumps(quota))).status_code == 200
    assert (await _run(ann, "third", gpus=1, **_LASTING)).status_code == 201
    listed = (await ann.get("/v1/quotas")).json()["items"]
    assert [item["used"] for item in listed] == [{"requests.nvidia.com/gpu": "3"}]
    assert (await as_user(BEN).get("/v1/quotas")).json()["items"] == []


async def test_users_are_tenants_also_where_a_quota_made_their_namespace(as_user: As, world: World) -> None:
    await world.store.create(core.Namespace(metadata=meta.ObjectMeta(name=f"user-{ANN}")))
    assert (await _manifest(as_user(ANN), {"hostPID": True})).status_code == 403


async def test_sums_count_everybody_and_name_nobody(as_user: As) -> None:
    assert (await _run(as_user(BEN), "secret", gpus=2, command=["sleep", "100"])).status_code == 201
    ann = as_user(ANN)
    await as_user(BEN).get("/v1/containers/secret/wait", params={"state": "started", "timeout": "5"})
    assert (await ann.get("/v1/nodes")).json()["items"][0]["used"]["nvidia.com/gpu"] == "2"
    status = (await ann.get("/v1/status")).json()
    assert (status["containers"], status["nodes"][0]["used"]["nvidia.com/gpu"]) == ({}, "2")
    gpus = (await ann.get("/v1/gpus")).json()["gpus"]
    assert all(one["namespace"] == f"user-{BEN}" for gpu in gpus for one in gpu["holders"])
    for path in ("/v1/status", "/v1/nodes", "/v1/gpus", "/v1/topology", "/v1/events", "/v1/containers?all=true"):
        assert "secret" not in (await ann.get(path)).text, path


async def test_a_caller_whom_nobody_vouches_for_is_refused(as_user: As) -> None:
    for uid in (None, 65534):
        answer = await as_user(uid).get("/v1/containers")
        assert (answer.status_code, answer.json()["reason"]) == (403, "CallerUnknown")


async def test_no_header_makes_a_caller_another(as_user: As) -> None:
    for name in ("x-remote-user", "x-forwarded-user", "authorization", "peer", "x-uid", "state"):
        answer = await as_user(ANN).get("/v1/containers", params={"namespace": "default"}, headers={name: "0"})
        assert answer.status_code == 200
        assert (await _run(as_user(ANN), f"n-{name}")).json()["namespace"] == f"user-{ANN}"


async def test_a_user_restarts_what_the_default_class_gave_a_priority(as_user: As, world: World) -> None:
    about = meta.ObjectMeta(name="usual")
    await world.store.create(PriorityClass(metadata=about, value=5, global_default=True))
    assert (await _run(as_user(ANN), "train")).json()["priority"] == 5
    again = await as_user(ANN).post("/v1/containers/train:restart", params={"grace": 0})
    assert again.status_code == 200, again.text
    assert again.json()["priority"] == 5


async def test_a_restart_that_would_be_refused_leaves_the_container_as_it_is(as_user: As, world: World) -> None:
    about = meta.ObjectMeta(name="urgent")
    await world.store.create(PriorityClass(metadata=about, value=5))
    root = as_user(0)
    made = await root.post(
        "/v1/containers", json={"image": "demo", "name": "train", "args": ["sleep", "60"], "priority": "urgent"}
    )
    assert made.status_code == 201, made.text
    before = (await world.pod("train")).metadata.uid

    await world.store.delete(PriorityClass, "urgent")
    refused = await root.post("/v1/containers/train:restart", params={"grace": 0})
    assert (refused.status_code, refused.json()["reason"]) == (422, "PriorityClassNotFound")
    assert (await world.pod("train")).metadata.uid == before


@pytest.mark.parametrize("uid", [0, ANN])
async def test_a_restart_beyond_a_quota_of_today_leaves_the_container_and_one_within_it_counts_it_once(
    as_user: As, world: World, uid: int
) -> None:
    client = as_user(uid)
    made = await client.post(
        "/v1/containers",
        json={"image": "demo", "name": "train", "args": ["sleep", "60"], "resources": {RESOURCE: 2}},
    )
    assert made.status_code == 201, made.text
    place = made.json()["namespace"]
    about = meta.ObjectMeta(name="q", namespace=place)
    await world.store.create(
        core.ResourceQuota(metadata=about, spec=core.ResourceQuotaSpec(hard={f"requests.{RESOURCE}": 1}))
    )
    before = (await world.pod("train", place)).metadata.uid
    refused = await client.post("/v1/containers/train:restart", params={"grace": 0, "namespace": place})
    assert refused.status_code == 403, refused.text
    assert (await world.pod("train", place)).metadata.uid == before

    limit = await world.store.get(core.ResourceQuota, "q", place)
    enough = core.ResourceQuotaSpec(hard={f"requests.{RESOURCE}": 2})
    await world.store.update(msgspec.structs.replace(limit, spec=enough))
    again = await client.post("/v1/containers/train:restart", params={"grace": 0, "namespace": place})
    assert again.status_code == 200, again.text
    assert (await world.pod("train", place)).metadata.uid != before
