"""`Idempotency-Key`: one container for one key, the same answer again, and nothing new under an old key."""

from __future__ import annotations

import asyncio
import datetime as dt
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from fairlead import errors, telemetry
from fairlead.serve.backend import idempotency
from fairlead.store.embedded import memory
from fairlead.store.port import Selector
from fairlead.wire.fairlead.podrequest import PodRequest
from fairlead.wire.kubernetes import core, meta
from tests.unit.serve.v1.accounts.test_api_accounts import opened
from tests.unit.serve.world import World

KEY = {"idempotency-key": "3f0c"}
MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {generateName: a-}
spec: {containers: [{name: main, image: demo}]}
---
apiVersion: v1
kind: Pod
metadata: {name: b}
spec: {containers: [{name: main, image: demo}]}
"""


async def _run(api: httpx.AsyncClient, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    return await api.post("/v1/containers", json={"image": "demo", **more}, headers=KEY if headers is None else headers)


async def _names(world: World) -> list[str]:
    return [pod.metadata.name for pod in (await world.store.list(core.Pod)).items]


async def test_a_request_that_comes_again_finds_its_container_and_has_the_same_answer(
    api: httpx.AsyncClient, world: World
) -> None:
    first, second = await _run(api), await _run(api)
    assert (first.status_code, second.status_code) == (201, 201)
    assert first.json() == second.json()
    assert ("idempotency-replayed" in first.headers, second.headers["idempotency-replayed"]) == (False, "true")
    assert await _names(world) == [first.json()["name"]]


async def test_it_makes_nothing_new_after_the_container_was_removed(api: httpx.AsyncClient, world: World) -> None:
    first = (await _run(api)).json()
    await api.get(f"/v1/containers/{first['name']}/wait?state=ended")
    await api.delete(f"/v1/containers/{first['name']}")
    await api.get(f"/v1/containers/{first['name']}/wait?state=gone")
    again = await _run(api)
    assert (again.status_code, again.json()["uid"]) == (201, first["uid"])
    assert await _names(world) == []


async def test_another_request_under_the_same_key_is_refused_and_another_key_makes_another(
    api: httpx.AsyncClient, world: World
) -> None:
    await _run(api)
    other = await _run(api, args=["else"])
    assert (other.status_code, other.json()["reason"]) == (422, "IdempotencyKeyReused")
    assert (await _run(api, {"idempotency-key": "3f0d"})).status_code == 201
    assert (await _run(api, {})).status_code == 201
    assert len(await _names(world)) == 3


@pytest.mark.parametrize("key", ["x" * 256, "two words", "\x7f", "ü"])
async def test_what_is_not_a_key_is_refused(api: httpx.AsyncClient, world: World, key: str) -> None:
    answer = await api.post("/v1/containers", json={"image": "demo"}, headers=[(b"idempotency-key", key.encode())])
    assert (answer.status_code, answer.json()["reason"]) == (400, "IdempotencyKeyInvalid")
    assert await _names(world) == []


async def test_a_route_that_keeps_no_keys_says_so(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/containers/x:stop", headers=KEY)
    assert (answer.status_code, answer.json()["reason"]) == (400, "IdempotencyKeyUnsupported")


async def test_what_was_refused_is_judged_anew(api: httpx.AsyncClient, world: World) -> None:
    await _run(api, {}, name="train")
    refused = await _run(api, name="train")
    assert (refused.status_code, refused.json()["reason"]) == (409, "AlreadyExists")
    await api.delete("/v1/containers/train?grace=0")
    await api.get("/v1/containers/train/wait?state=gone")
    assert (await _run(api, name="train")).status_code == 201
    assert await _names(world) == ["train"]


async def test_of_many_at_once_one_makes_it_and_the_others_find_it_or_hear_that_it_is_under_way(
    api: httpx.AsyncClient, world: World
) -> None:
    found = await asyncio.gather(*(_run(api) for _ in range(8)))
    said = {(one.status_code, one.json().get("reason", "")) for one in found}
    assert (201, "") in said
    assert said <= {(201, ""), (409, "RequestInFlight")}
    assert len(await _names(world)) == 1


async def test_a_manifest_that_comes_again_makes_what_is_missing_of_it(api: httpx.AsyncClient, world: World) -> None:
    first = await api.post("/v1/pods", content=MANIFEST, headers=KEY)
    names = [one["name"] for one in first.json()["items"]]
    assert first.status_code == 201
    # As a service leaves it that was killed between the two.
    (second,) = (one for one in (await world.store.list(PodRequest)).items if one.spec.pod_name == "b")
    await world.store.delete(PodRequest, second.metadata.name)
    await world.store.delete(core.Pod, "b", "default", grace_s=0)
    again = await api.post("/v1/pods", content=MANIFEST, headers=KEY)
    assert [one["name"] for one in again.json()["items"]] == names
    assert sorted(await _names(world)) == sorted(names)
    whole = await api.post("/v1/pods", content=MANIFEST, headers=KEY)
    assert whole.headers["idempotency-replayed"] == "true"
    other = await api.post("/v1/pods", content=MANIFEST + "\n", headers=KEY)
    assert other.json()["reason"] == "IdempotencyKeyReused"


async def test_each_accounts_keys_are_its_own(world: World, tmp_path: Path) -> None:
    async with opened(world, tmp_path) as lab:
        made = [
            (await lab.ask(who, "POST", "/v1/containers", json={"image": "demo", "tenancy": "red"}, headers=KEY)).json()
            for who in ("developer", "owner", "developer")
        ]
    assert made[0] == made[2]
    assert made[0]["uid"] != made[1]["uid"]


async def test_a_key_is_forgotten_after_a_day(world: World) -> None:
    now = [dt.datetime.now(dt.UTC)]
    requests = idempotency.LocalRequests(store=world.store, now=lambda: now[0])
    once = idempotency.once("ann", "k", b"body", answer=lambda pod: pod.metadata.name)
    assert once is not None
    for name in ("a", "b"):
        await world.store.create(once.part(ord(name)).record(core.Pod(metadata=meta.ObjectMeta(name=name))))
    assert (await requests.find(once.part(ord("a")), ""), await requests.prune()) == ("a", 0)
    now[0] += dt.timedelta(days=1, seconds=1)
    assert await requests.find(once.part(ord("a")), "") is None
    assert [one.spec.pod_name for one in (await world.store.list(PodRequest)).items] == ["b"]
    assert await requests.prune() == 1


class Killed(BaseException):
    """The process ends at a crash point."""


@pytest.mark.parametrize("point", ["after-volumes", "before-store", "after-store", "after-record"])
async def test_a_service_that_ends_at_any_step_leaves_one_container_for_the_key(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def crash_point(name: str) -> None:
        if name == f"submission.{point}":
            raise Killed

    volumes = [{"name": "data", "container_path": "/data"}]
    with monkeypatch.context() as patch:
        patch.setattr(telemetry, "crash_point", crash_point)
        with pytest.raises(Killed):
            await _run(api, volumes=volumes)
    answers = [(await _run(api, volumes=volumes)).json()["uid"] for _ in range(2)]
    (pod,) = (await world.store.list(core.Pod)).items
    assert answers == [pod.metadata.uid] * 2


class Served(memory.MemoryStore):
    """An API server's store: it stores one object at a time."""


async def _on_cluster(store: Served, once: idempotency.Once, pod: core.Pod) -> core.Pod:
    return await store.create(idempotency.carrying(pod, once))


def _once(key: str, body: bytes = b"{}") -> idempotency.Once:
    found = idempotency.once("local", key, body, answer=lambda pod: pod.metadata.name)
    assert found is not None
    return found


async def test_on_a_cluster_the_pod_carries_the_key_and_a_second_one_meets_its_name() -> None:
    store, wanted = Served(), core.Pod(metadata=meta.ObjectMeta(generate_name="demo-", namespace="default"))
    requests = idempotency.ClusterRequests(store=store)
    assert await requests.find(_once("k"), "default") is None
    made = await _on_cluster(store, _once("k"), wanted)
    assert made.metadata.name.startswith("demo-")
    with pytest.raises(errors.Conflict):
        await _on_cluster(store, _once("k"), wanted)
    assert await requests.find(_once("k"), "default") == made.metadata.name
    assert await requests.find(_once("l"), "default") is None
    with pytest.raises(errors.Invalid):
        await requests.find(_once("k", b"[]"), "default")
    named = core.Pod(metadata=meta.ObjectMeta(name="train", namespace="default"))
    assert (await _on_cluster(store, _once("m"), named)).metadata.name == "train"
    labels = msgspec.to_builtins(made.metadata.labels)
    assert (await store.list(core.Pod, Selector(labels=labels))).items == (made,)


async def test_on_a_cluster_a_user_who_may_not_list_pods_may_send_a_key() -> None:
    class Closed(Served):
        async def list(self, *_: Any, **__: Any) -> Any:
            raise errors.Denied("pods is forbidden", reason="Forbidden")

    assert await idempotency.ClusterRequests(store=Closed()).find(_once("k"), "default") is None
