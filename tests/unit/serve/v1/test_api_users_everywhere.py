"""Every route of the API, as a user who looks for another user's container: none names it, none touches it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from fairlead.serve.api import app as base
from fairlead.serve.v1 import app
from fairlead.wire.kubernetes import core
from tests.unit.serve.v1.test_api_users import ANN, BEN, As, _run, as_user
from tests.unit.serve.world import World

__all__ = ["as_user"]
SECRET = "secret-name"
ANYTHING: dict[str, Any] = {
    "gpu": "0",
    "resource": "nvidia.com/gpu",
    "name": SECRET,
    "fault": "xid",
    "value": "79",
    "image": "demo",
    "path": "/etc",
    "context": "/etc",
    "new": "demo:2",
}


def _routes(world: World) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in base.describe(app.create_app(world.services))["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


async def _theirs(as_user: As) -> httpx.AsyncClient:
    ben = as_user(BEN)
    volumes = [{"name": SECRET, "container_path": "/v"}]
    assert (await _run(ben, SECRET, gpus=2, volumes=volumes, command=["sleep"], args=["60"])).is_success
    started = await ben.get(f"/v1/containers/{SECRET}/wait", params={"state": "started", "timeout": 20})
    assert started.json()["state"] == "running"
    return as_user(ANN)


async def test_no_route_that_takes_a_name_finds_another_users(as_user: As, world: World) -> None:
    ann = await _theirs(as_user)
    before = await world.pod(SECRET, f"user-{BEN}")
    tried = [(method, path) for method, path, _ in _routes(world) if "{name}" in path]
    assert len(tried) > 15
    for method, path in tried:
        for query in ("timeout=0", f"timeout=0&namespace=user-{BEN}"):
            body = None if method == "GET" else ANYTHING
            answer = await ann.request(method, f"{path.replace('{name}', SECRET)}?{query}", json=body)
            assert answer.status_code in {400, 403, 404, 422}, (method, path, answer.text)
    after = await world.pod(SECRET, f"user-{BEN}")
    assert (after.metadata.uid, after.metadata.deletion_timestamp) == (before.metadata.uid, None)
    assert after.status.stop_request is None
    claims = (await world.store.list(core.PersistentVolumeClaim)).items
    assert [(one.metadata.name, one.metadata.deletion_timestamp) for one in claims] == [(SECRET, None)]


@pytest.mark.parametrize("query", ["", f"namespace=user-{BEN}", "namespace="])
async def test_no_list_names_another_users(as_user: As, world: World, query: str) -> None:
    ann = await _theirs(as_user)
    assert (await _run(ann, "mine", gpus=2)).is_success
    read = [path for method, path, _ in _routes(world) if method == "GET" and "{name}" not in path]
    assert len(read) > 8
    own = [path.replace("{name}", "mine") for _, path, _ in _routes(world) if path.startswith("/v1/containers/{name}/")]
    for path in (*read, *(path for path in own if not path.endswith(("/wait", "/logs", ":")))):
        answer = await ann.get(path, params=query)
        assert answer.status_code < 500, (path, answer.text)
        assert SECRET not in answer.text, path


async def test_no_request_without_a_name_reaches_another_users(as_user: As, world: World) -> None:
    ann = await _theirs(as_user)
    for method, path, _ in _routes(world):
        if method != "GET" and "{name}" not in path and not path.endswith(":prune"):
            answer = await ann.request(method, f"{path}?namespace=user-{BEN}", json=ANYTHING)
            assert answer.status_code < 500, (path, answer.text)
            made = {**ANYTHING, "namespace": f"user-{BEN}"}
            done = await ann.request(method, path, json=made)
            own = (method, path) == ("DELETE", "/v1/session")  # a browser's own, of which the socket has none
            assert own or not done.is_success, path
    assert (await ann.post("/v1/volumes:prune")).json()["names"] == []
    claims = (await world.store.list(core.PersistentVolumeClaim)).items
    assert [one.metadata.namespace for one in claims] == [f"user-{BEN}"]
