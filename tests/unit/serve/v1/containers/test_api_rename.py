"""Another name for a container over the API: who may have one, what stays, and what the old name leads to."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
import msgspec
import pytest

from fairlead.serve.backend.containers import pods
from fairlead.store.port import ChangeKind
from fairlead.wire.kubernetes import core, meta, names
from fairlead.wire.kubernetes.devicechange import PodReplacement, PodReplacementSpec
from tests.unit.serve.world import World


async def _ended(api: httpx.AsyncClient, name: str = "old", **more: Any) -> dict[str, Any]:
    answer = await api.post("/v1/containers", json={"image": "demo", "name": name, **more})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = (await api.get(f"/v1/containers/{name}/wait", params={"state": "ended"})).json()
    return found


async def _rename(api: httpx.AsyncClient, old: str, new: Any) -> tuple[int, Any]:
    answer = await api.post(f"/v1/containers/{old}:rename", json={"name": new})
    return answer.status_code, answer.json() if answer.status_code == 200 else answer.json().get("reason", "")


async def test_an_ended_container_keeps_its_record_under_its_new_name(api: httpx.AsyncClient) -> None:
    before = await _ended(api, gpus=1)
    status, shown = await _rename(api, "old", "new")
    assert (status, shown["name"], shown["uid"], shown["state"]) == (200, "new", before["uid"], "succeeded")
    assert (await api.get("/v1/containers/new/logs")).text == "hello\n"
    steps = (await api.get("/v1/containers/new/trace")).json()["entries"]
    assert {"Accepted", "Renamed"} <= {one["step"]["reason"] for one in steps if one["step"]}
    assert (await api.get("/v1/containers/old")).status_code == 404
    assert (await _ended(api))["uid"] != before["uid"]  # its name is free
    again = await api.post("/v1/containers/new:restart")
    assert (again.status_code, again.json()["name"]) == (200, "new")


async def test_one_that_runs_keeps_its_name_and_is_told_how_to_get_another(api: httpx.AsyncClient) -> None:
    await api.post("/v1/containers", json={"image": "demo", "command": ["sleep", "60"], "name": "box"})
    await api.get("/v1/containers/box/wait", params={"state": "started"})
    answer = await api.post("/v1/containers/box:rename", json={"name": "new"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "ContainerRuns")
    assert answer.json()["hint"] == "`fairlead stop box; fairlead rename box new; fairlead start new`"
    await api.post("/v1/containers/box:stop", params={"grace": 0, "wait": 5})
    assert (await _rename(api, "box", "new"))[0] == 200


@pytest.mark.parametrize("name", ["", "A", "a b", "../x", "a\0b", "-x", "x" * 254, "\x1b[2J"])
async def test_what_is_no_name_is_refused(api: httpx.AsyncClient, name: str) -> None:
    await _ended(api)
    await api.post("/v1/containers", json={"image": "demo", "command": ["sleep", "60"], "name": "runs"})
    for there in ("old", "runs"):
        answer = await api.post(f"/v1/containers/{there}:rename", json={"name": name})
        assert answer.status_code in {400, 422}
        assert not name or name not in str(answer.json().get("hint")), "a hint is a line to type"
        assert (await api.get(f"/v1/containers/{there}")).status_code == 200


async def test_a_taken_name_and_one_that_is_being_started_again_are_refused(
    api: httpx.AsyncClient, world: World
) -> None:
    await _ended(api)
    await _ended(api, "other")
    assert await _rename(api, "old", "other") == (409, "AlreadyExists")
    assert await _rename(api, "old", "old") == (409, "AlreadyExists")
    assert await _rename(api, "nowhere", "new") == (404, "ContainerNotFound")
    spec = PodReplacementSpec(pod_uid="u", pod=core.Pod(spec=core.PodSpec(containers=())))
    for name in ("old", "coming"):
        about = meta.ObjectMeta(name=name, namespace="default")
        await world.store.create(PodReplacement(metadata=about, spec=spec))
        assert await _rename(api, "old", "coming") == (409, "RestartPending")
        await world.store.delete(PodReplacement, name, "default")
    assert (await _rename(api, "old", "coming"))[0] == 200


async def test_what_others_name_keeps_its_name(api: httpx.AsyncClient, world: World) -> None:
    await _ended(api)
    owner = meta.OwnerReference(api_version="batch/v1", kind="Job", name="sweep", uid="u", controller=True)
    for more, said in (
        ({"owner_references": (owner,)}, 'belongs to Job "sweep"'),
        ({"labels": {names.ARRAY: "grid"}}, 'one of the array "grid"'),
    ):
        pod = await world.store.get(core.Pod, "old", "default")
        about = msgspec.structs.replace(pod.metadata, **more)
        await world.store.update(msgspec.structs.replace(pod, metadata=about))
        answer = await api.post("/v1/containers/old:rename", json={"name": "new"})
        assert (answer.status_code, answer.json()["reason"], said in answer.json()["detail"]) == (409, "PodOwned", True)
        bare = msgspec.structs.replace(about, owner_references=(), labels={}, resource_version="")
        await world.store.update(msgspec.structs.replace(pod, metadata=bare))


async def test_who_follows_a_container_follows_it_under_its_new_name(world: World) -> None:
    spec = core.PodSpec(containers=(core.Container(name="c", image="demo"),))
    old = await world.store.create(core.Pod(metadata=meta.ObjectMeta(name="old", namespace="n"), spec=spec))
    async with contextlib.aclosing(pods.follow(world.store, old)) as seen:  # type: ignore[type-var]  # it is a generator
        assert (await anext(seen)).object == old
        new = await world.store.rename(old, "new", lambda _seen: None)
        assert (await anext(seen)).object == new
        await world.store.delete(core.Pod, "new", "n")
        assert (await anext(seen)).kind is ChangeKind.DELETED
        with pytest.raises(StopAsyncIteration):
            await anext(seen)
