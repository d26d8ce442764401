"""The machine over the API: GPUs, links, nodes, events, images, faults, health."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import errors
from fairlead.serve.backend import local
from fairlead.store.port import EVERYTHING, Selector
from fairlead.wire.kubernetes import core
from tests.unit.serve.world import GPU_COUNT, NODE, RESOURCE, World, application, in_process, inventory


async def test_gpus_are_listed_with_their_holders(api: httpx.AsyncClient) -> None:
    made = await api.post("/v1/containers", json={"image": "demo", "gpus": 2, "args": ["sleep", "60"]})
    name = made.json()["name"]
    await api.get(f"/v1/containers/{name}/wait", params={"state": "started"})
    found = (await api.get("/v1/gpus")).json()
    assert [bool(item["holders"]) for item in found["gpus"]] == [True, True, False, False]
    holder = found["gpus"][0]["holders"][0]
    assert abs((dt.datetime.now(dt.UTC) - dt.datetime.fromisoformat(holder.pop("since"))).total_seconds()) < 60
    assert holder == {
        "device": "GPU-0",
        "namespace": "default",
        "container": name,
        "part": "",
        "resource": "nvidia.com/gpu",
        "claim": "",
        "enforced_by": "",
    }
    assert found["is_simulated"] is True


async def test_an_ended_container_holds_nothing(api: httpx.AsyncClient) -> None:
    made = await api.post("/v1/containers", json={"image": "demo", "gpus": 2})
    await api.get(f"/v1/containers/{made.json()['name']}/wait")
    assert not any(item["holders"] for item in (await api.get("/v1/gpus")).json()["gpus"])


async def test_topology_gives_each_pair_once(api: httpx.AsyncClient) -> None:
    found = (await api.get("/v1/topology")).json()
    (machine,) = found["items"]
    assert machine["node"] == NODE
    assert len(machine["links"]) == GPU_COUNT * (GPU_COUNT - 1) // 2
    assert machine["links"][0] == {"a": "GPU-0", "b": "GPU-1", "kind": "NV", "lanes": 18}


async def test_nodes_show_what_is_taken(api: httpx.AsyncClient) -> None:
    body = {"image": "demo", "gpus": 3, "cpu": "500m", "memory": "1Gi", "args": ["sleep", "60"]}
    made = await api.post("/v1/containers", json=body)
    await api.get(f"/v1/containers/{made.json()['name']}/wait", params={"state": "started"})
    node = (await api.get("/v1/nodes")).json()["items"][0]
    assert (node["name"], node["state"]) == (NODE, "ready")
    assert node["used"] == {RESOURCE: "3", "cpu": "500m", "memory": "1Gi"}


async def test_capacity_says_what_is_free_and_what_fits(api: httpx.AsyncClient) -> None:
    made = await api.post("/v1/containers", json={"image": "demo", "gpus": 3, "args": ["sleep", "60"]})
    await api.get(f"/v1/containers/{made.json()['name']}/wait", params={"state": "started"})
    (found,) = (await api.get("/v1/capacity")).json()["items"]
    assert (found["resource"], found["offered"], found["free"], found["largest"]) == (RESOURCE, GPU_COUNT, 1, 1)
    assert found["fits"] == {"1": 1, "2": 0, "3": 0, "4": 0}
    assert found["fragmented"] == 1.0  # to a pod of three, as the one that runs, the free one is of no use


async def test_events_are_chosen_by_object(api: httpx.AsyncClient) -> None:
    made = await api.post("/v1/containers", json={"image": "demo"})
    name = made.json()["name"]
    for wanted in (f"pod/{name}", f"container/{name}", name):
        found = (await api.get("/v1/events", params={"object": wanted})).json()["items"]
        assert {item["object"] for item in found} == {f"pod/{name}"}
    assert not (await api.get("/v1/events", params={"object": f"node/{name}"})).json()["items"]
    assert (await api.get("/v1/events", params={"object": f"node/{NODE}"})).json()["items"]


async def test_only_events_of_the_name_are_read_from_the_store(
    api: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = (await api.post("/v1/containers", json={"image": "demo"})).json()["name"]
    asked, whole = list[Selector](), world.store.list

    async def noted(kind: Any, selector: Selector = EVERYTHING) -> Any:
        if kind is core.Event:
            asked.append(selector)
        return await whole(kind, selector)

    monkeypatch.setattr(world.store, "list", noted)
    assert (await api.get("/v1/events", params={"object": f"pod/{name}"})).json()["items"]
    assert [one.fields for one in asked] == [{"involvedObject.name": name}]


async def test_events_can_be_followed(door: httpx.AsyncClient) -> None:
    async with door.stream("GET", "/v1/events", params={"follow": "true", "object": "pod/late"}) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        await door.post("/v1/containers", json={"image": "demo", "name": "late"})
        lines = answer.aiter_lines()
        assert json.loads(await anext(lines))["reason"] == "Accepted"


async def test_status_counts_and_describes(api: httpx.AsyncClient) -> None:
    made = await api.post("/v1/containers", json={"image": "demo"})
    await api.get(f"/v1/containers/{made.json()['name']}/wait")
    found = (await api.get("/v1/status")).json()
    assert (found["node"], found["engine"]["name"], found["gpus"]["found"]) == (NODE, "fake", GPU_COUNT)
    assert found["containers"] == {"succeeded": 1}


async def test_images_are_imported_built_listed_and_removed(door: httpx.AsyncClient, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "Containerfile").write_text('FROM mine\nCMD ["echo", "hi"]\n')
    made = await door.post("/v1/images:import", json={"path": str(root), "name": "mine", "command": ["echo"]})
    assert made.status_code == 201
    built = await door.post("/v1/images:build", json={"context": str(root), "name": "other"})
    lines = [json.loads(line) for line in built.text.splitlines()]
    assert lines[-1] == {"image": "other"}
    assert lines[0]["output"].startswith("STEP")
    await door.delete("/v1/images", params={"name": "mine"})
    names = [name for item in (await door.get("/v1/images")).json()["items"] for name in item["names"]]
    assert any(name.endswith("other") or "other" in name for name in names)
    assert not any("mine" in name for name in names)


async def test_a_failed_build_ends_in_a_problem_line(door: httpx.AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "Containerfile").write_text("FROM nothing\n")
    built = await door.post("/v1/images:build", json={"context": str(tmp_path), "name": "other"})
    last = json.loads(built.text.splitlines()[-1])
    assert last["problem"]["reason"] == "BuildFailed"


async def test_relative_paths_are_refused(api: httpx.AsyncClient) -> None:
    answer = await api.post("/v1/images:import", json={"path": "here", "name": "mine"})
    assert (answer.status_code, answer.json()["reason"]) == (422, "PathNotAbsolute")


async def test_faults_reach_simulated_silicon(api: httpx.AsyncClient, world: World) -> None:
    answer = await api.post("/v1/faults", json={"fault": "xid", "gpu": 3, "value": "79"})
    assert (answer.status_code, answer.json()) == (200, {"message": "xid injected"})
    assert world.faults.asked == [("xid", 3, "79")]
    unknown = await api.post("/v1/faults", json={"fault": "fire"})
    assert (unknown.status_code, unknown.json()["reason"]) == (422, "FaultUnknown")


async def test_real_silicon_is_not_broken_on_command(world: World) -> None:
    backend = local.backend(
        store=world.store,
        engine=world.engine,
        node=NODE,
        readings=local.Readings(scan=inventory, drivers=tuple),
        faults=None,
        state_folder=world.services.info.state_folder,
        dial=world.engine.dial,
    )
    real = application(dataclasses.replace(world.services, backend=backend))
    async with httpx.AsyncClient(transport=in_process(real), base_url="http://test") as client:
        answer = await client.post("/v1/faults", json={"fault": "xid"})
    assert (answer.status_code, answer.json()["reason"]) == (409, "SiliconReal")


async def test_health_and_readiness(api: httpx.AsyncClient, world: World) -> None:
    assert (await api.get("/healthz")).json() == {"status": "ok"}
    assert (await api.get("/readyz")).status_code == 200
    await world.store.delete(core.Node, NODE)
    answer = await api.get("/readyz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "NodeNotReady")


async def test_without_its_state_folder_a_machine_is_not_ready(api: httpx.AsyncClient, world: World) -> None:
    folder = world.services.info.state_folder
    folder.rename(folder.with_name("elsewhere"))
    answer = await api.get("/readyz")
    folder.with_name("elsewhere").rename(folder)
    assert (answer.status_code, answer.json()["reason"]) == (503, "StateUnwritable")


class _Broken:
    """Images of an engine that is not installed, and a bug."""

    async def info(self) -> None:
        raise errors.Unavailable("podman is not installed", reason="EngineMissing", hint="install podman")

    async def list_images(self) -> None:
        raise ZeroDivisionError("secret detail")


async def test_a_broken_engine_is_described_by_status_and_a_bug_says_nothing_of_its_inside(
    world: World, capsys: object
) -> None:
    hardware = dataclasses.replace(world.backend.hardware, images=_Broken())  # type: ignore[type-var]
    broken = dataclasses.replace(world.backend, hardware=hardware, images=_Broken())  # type: ignore[arg-type]
    doors = dataclasses.replace(world.services, backend=broken)
    transport = in_process(application(doors), raises=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        status = (await client.get("/v1/status")).json()
        bug = await client.get("/v1/images")
    assert (status["engine"]["problem"], status["engine"]["hint"]) == ("podman is not installed", "install podman")
    assert (bug.status_code, bug.json()["reason"]) == (500, "Bug")
    assert "secret" not in bug.text


async def test_unknown_routes_and_methods_are_problems(api: httpx.AsyncClient) -> None:
    lost = await api.get("/v1/nothing")
    assert (lost.status_code, lost.json()["reason"]) == (404, "RouteUnknown")
    wrong = await api.put("/v1/gpus")
    assert (wrong.status_code, wrong.json()["reason"]) == (405, "MethodNotAllowed")
    verb = await api.post("/v1/containers/x:dance")
    assert (verb.status_code, verb.json()["reason"]) == (404, "RouteUnknown")
