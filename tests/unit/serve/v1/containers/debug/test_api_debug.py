"""Ephemeral containers over the API: made, refused by the pod's own rules, shown beside the pod's containers."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from fairlead.wire.kubernetes import core, meta
from tests.unit.serve.world import World


async def _running(api: httpx.AsyncClient, namespace: str = "default", **more: Any) -> str:
    body = {"image": "demo", "command": ["sleep", "60"], "name": "box", "namespace": namespace, **more}
    answer = await api.post("/v1/containers", json=body)
    assert answer.status_code == 201, answer.text
    params = {"namespace": namespace, "state": "started"}
    assert (await api.get("/v1/containers/box/wait", params=params)).json()["state"] == "running"
    return "box"


async def _debug(api: httpx.AsyncClient, namespace: str = "default", **body: Any) -> httpx.Response:
    return await api.post("/v1/containers/box/ephemeralcontainers", json=body, params={"namespace": namespace})


async def test_it_is_made_and_shown_beside_the_containers(api: httpx.AsyncClient, world: World) -> None:
    await _running(api)
    made = (await _debug(api, command=["sh", "-c", "echo $(HOME)"], target="box", env={"A": "$(B)"})).json()
    assert made["name"].startswith("debugger-")
    assert (made["image"], made["is_ephemeral"], made["state"]) == ("demo", True, "waiting")
    shown = (await api.get("/v1/containers/box")).json()
    assert [part["name"] for part in shown["containers"]] == ["demo", made["name"]]
    (stored,) = (await world.store.get(core.Pod, "box", "default")).spec.ephemeral_containers
    assert (stored.command[-1], stored.env[0].value) == ("echo $$(HOME)", "$$(B)")  # its words are not expanded
    again = await api.post("/v1/containers/box:restart", params={"grace": "0"})
    assert [part["name"] for part in again.json()["containers"]] == ["demo"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"target": "other"}, 422, 'spec.ephemeralContainers[0].targetContainerName: Not found: "other"'),
        ({"name": "demo"}, 422, 'spec.ephemeralContainers[0].name: Duplicate value: "demo"'),
        ({"image": "A b"}, 422, "couldn't parse image name"),
        ({"pull": "Sometimes"}, 422, "spec.ephemeralContainers[0].imagePullPolicy: Unsupported value"),
        ({"env": {"NVIDIA_VISIBLE_DEVICES": "all"}}, 422, "which gives none here"),
        ({"workdir": "a\0"}, 422, "NUL"),
        ({"gpus": 1}, 400, "gpus"),
    ],
)
async def test_what_is_wrong_is_refused_by_its_path(
    api: httpx.AsyncClient, world: World, body: dict[str, Any], status: int, said: str
) -> None:
    await _running(api)
    answer = await _debug(api, **body)
    assert (answer.status_code, said in answer.json()["detail"]) == (status, True), answer.text
    assert not (await world.store.get(core.Pod, "box", "default")).spec.ephemeral_containers


async def test_an_ended_container_is_not_joined(api: httpx.AsyncClient) -> None:
    await _running(api)
    await api.post("/v1/containers/box:stop", params={"grace": "0", "wait": "10"})
    answer = await _debug(api)
    assert (answer.status_code, answer.json()["reason"]) == (409, "ContainerNotRunning")
    assert (await api.post("/v1/containers/none/ephemeralcontainers", json={})).status_code == 404


async def test_a_tenants_is_held_to_the_images_of_its_namespace(api: httpx.AsyncClient, world: World) -> None:
    listed = {"fairlead.dev/allowed-images": "demo"}
    about = meta.ObjectMeta(name="acme", labels={"fairlead.dev/tenancy": "acme"}, annotations=listed)
    await world.store.create(core.Namespace(metadata=about))
    await _running(api, namespace="acme")
    refused = await _debug(api, namespace="acme", image="evil")
    assert (refused.status_code, refused.json()["reason"]) == (403, "TenantPodForbidden")
    assert "evil" in refused.json()["detail"]
    assert (await _debug(api, namespace="acme")).status_code == 201


async def test_gates_are_set_by_the_status_route_and_nothing_else(api: httpx.AsyncClient, world: World) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gated"},
        "spec": {
            "readinessGates": [{"conditionType": "example.com/open"}],
            "containers": [{"name": "main", "image": "demo"}],
        },
    }
    assert (await api.post("/v1/pods", json=pod)).status_code == 201
    body = {"conditions": [{"type": "example.com/open", "status": "True", "reason": "Open"}]}
    answer = await api.patch("/v1/containers/gated/status", json=body)
    assert answer.status_code == 200, answer.text
    found = meta.find_condition((await world.pod("gated")).status.conditions, "example.com/open")
    assert found is not None
    assert (found.status, found.reason) == ("True", "Open")
    refused = await api.patch("/v1/containers/gated/status", json={"conditions": [{"type": "Ready", "status": "True"}]})
    assert (refused.status_code, "Forbidden" in refused.json()["detail"]) == (422, True)
    assert (await api.patch("/v1/containers/none/status", json=body)).status_code == 404
