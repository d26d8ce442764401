"""Named volumes through the API: made, shared, refused while in use, removed with their files; each user's own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from structlog.testing import capture_logs

from fairlead.kernel import socketpeer
from fairlead.plan.schedule import rules
from fairlead.serve import peer
from fairlead.serve.v1 import dependencies
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.coordination import PriorityClass
from tests.unit.serve.world import World, application, in_process

As = Callable[[int], httpx.AsyncClient]


@pytest.fixture
def as_user(world: World) -> As:
    made = application(replace(world.services, callers=dependencies.Callers(masters=frozenset({0}))))

    def client(uid: int) -> httpx.AsyncClient:
        async def called(scope: Any, receive: Any, send: Any) -> None:
            caller = socketpeer.Peer(pid=1, uid=uid, gid=uid)
            inner: Any = made
            await inner({**scope, "state": {peer.KEY: caller}}, receive, send)

        return httpx.AsyncClient(transport=in_process(called), base_url="http://test")

    return client


def _mounting(*names: str, **more: Any) -> dict[str, Any]:
    volumes = [{"name": name, "container_path": f"/{name}"} for name in names]
    return {"image": "demo", "args": ["sleep", "600"], "volumes": volumes, **more}


async def test_a_container_makes_its_volume_which_stays_while_it_is_in_use(as_user: As, world: World) -> None:
    root = as_user(0)
    made = await root.post("/v1/containers", json=_mounting("data", name="a"))
    assert made.status_code == 201, made.text
    (shown,) = (await root.get("/v1/volumes")).json()["items"]
    assert (shown["name"], shown["state"], shown["used_by"]) == ("data", "ready", ["a"])
    assert await root.post("/v1/containers", json=_mounting("data", name="b"))

    refused = await root.delete("/v1/volumes/data")
    assert (refused.status_code, refused.json()["reason"]) == (409, "VolumeInUse")
    assert "in use by a, b" in refused.json()["detail"]
    pod = await world.pod("a")
    assert pod.spec.volumes[0].persistent_volume_claim == core.ClaimVolume(claim_name="data")
    assert rules.refusal(pod.spec) == ""


async def test_removal_takes_the_files_and_a_later_volume_of_that_name_is_empty(as_user: As) -> None:
    root = as_user(0)
    folder = Path((await root.post("/v1/volumes", json={"name": "data"})).json()["path"])
    (folder / "inner").mkdir(parents=True)
    again = await root.post("/v1/volumes", json={"name": "data"})
    assert again.json()["path"] == str(folder)

    assert (await root.delete("/v1/volumes/data")).status_code == 204
    assert not folder.exists()
    assert (await root.get("/v1/volumes/data")).status_code == 404
    fresh = Path((await root.post("/v1/volumes", json={"name": "data"})).json()["path"])
    assert fresh != folder


async def test_a_volume_whose_files_cannot_be_removed_is_not_forgotten(
    as_user: As, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = as_user(0)
    folder = Path((await root.post("/v1/volumes", json={"name": "data"})).json()["path"])
    (folder / "inner").mkdir(parents=True)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch, capture_logs() as logged:
        patch.setattr(shutil, "rmtree", refuse)
        assert (await root.delete("/v1/volumes/data")).status_code == 204
    assert (await root.get("/v1/volumes/data")).json()["state"] == "removing"
    assert [line["path"] for line in logged if line["event"] == "volume not removed"] == [str(folder)]
    await root.post("/v1/volumes", json={"name": "other"})  # tries again
    assert (await root.get("/v1/volumes/data")).status_code == 404
    assert not folder.exists()


async def test_a_pod_that_names_a_volume_that_is_not_there_or_on_its_way_out_is_refused(
    as_user: As, world: World
) -> None:
    root = as_user(0)
    text = """{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c",
      "image": "demo"}], "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]}}"""
    missing = await root.post("/v1/pods", content=text)
    assert (missing.status_code, missing.json()["reason"]) == (422, "VolumeNotFound")
    await root.post("/v1/volumes", json={"name": "data"})
    await world.store.delete(core.PersistentVolumeClaim, "data", "default")  # marked by a remover that died
    leaving = await root.post("/v1/pods", content=text)
    assert "is being removed" in leaving.json()["detail"]
    assert (await root.post("/v1/volumes", json={"name": "other"})).status_code == 201
    assert [one["name"] for one in (await root.get("/v1/volumes")).json()["items"]] == ["other"]


async def test_a_manifest_brings_its_claims(as_user: As) -> None:
    root = as_user(0)
    text = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  containers: [{name: c, image: demo, volumeMounts: [{name: v, mountPath: /v}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
"""
    made = await root.post("/v1/pods", content=text)
    assert made.status_code == 201, made.text
    assert any("spec.resources is not carried out" in line for line in made.json()["warnings"])
    assert (await root.get("/v1/volumes/data")).json()["used_by"] == ["p"]


_FORGED = {"fairlead.dev/tenancy-uid": "forged"}


async def test_labels_of_ours_are_refused_at_a_volume(as_user: As) -> None:
    refused = await as_user(0).post("/v1/volumes", json={"name": "data", "labels": _FORGED})
    assert (refused.status_code, refused.json()["reason"]) == (403, "NameReserved")
    assert (await as_user(0).get("/v1/volumes")).json()["items"] == []


@pytest.mark.parametrize("part", ["labels", "annotations"])
@pytest.mark.parametrize(
    "kind", ["apiVersion: v1\nkind: PersistentVolumeClaim", "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass"]
)
@pytest.mark.parametrize("dry_run", [False, True])
async def test_labels_of_ours_are_refused_at_all_that_a_manifest_has(
    as_user: As, world: World, kind: str, part: str, dry_run: bool
) -> None:
    whole = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: first}"
    forged = f"{kind}\nmetadata: {{name: data, {part}: {json.dumps(_FORGED)}}}"
    params = {"dry_run": str(dry_run).lower()}
    refused = await as_user(0).post("/v1/pods", content=f"{whole}\n---\n{forged}\n", params=params)
    assert (refused.status_code, refused.json()["reason"]) == (403, "NameReserved"), refused.text
    assert f"metadata.{part}[fairlead.dev/tenancy-uid]" in refused.json()["detail"]
    for made in (core.PersistentVolumeClaim, PriorityClass):  # what stands before it in the manifest, too
        assert not (await world.store.list(made)).items


async def test_a_users_dry_run_of_a_priority_is_refused_as_the_request_is(as_user: As) -> None:
    text = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: top}\nvalue: 1000\n"
    for params in ({}, {"dry_run": "true"}):
        refused = await as_user(1000).post("/v1/pods", content=text, params=params)
        assert (refused.status_code, refused.json()["reason"]) == (403, "RootOnly"), refused.text
    assert (await as_user(0).post("/v1/pods", content=text, params={"dry_run": "true"})).status_code == 200


async def test_prune_takes_what_no_container_mounts(as_user: As) -> None:
    root = as_user(0)
    await root.post("/v1/containers", json=_mounting("used", name="a"))
    await root.post("/v1/volumes", json={"name": "idle"})
    assert (await root.post("/v1/volumes:prune")).json()["names"] == ["idle"]
    assert [one["name"] for one in (await root.get("/v1/volumes")).json()["items"]] == ["used"]


async def test_each_user_has_volumes_of_their_own(as_user: As, world: World) -> None:
    ann, ben = as_user(1001), as_user(1002)
    for one in (ann, ben):
        made = await one.post("/v1/containers", json=_mounting("data", name="a"))
        assert made.status_code == 201, made.text
    shown = [(await one.get("/v1/volumes/data")).json() for one in (ann, ben)]
    assert [one["path"] for one in shown] == ["", ""]  # of the host, where they have no business
    claims = [await world.store.get(core.PersistentVolumeClaim, "data", f"user-{uid}") for uid in (1001, 1002)]
    assert len({str(world.backend.volumes.path(one)) for one in claims}) == 2
    assert [one["namespace"] for one in (await ann.get("/v1/volumes")).json()["items"]] == ["user-1001"]
    assert (await ann.delete("/v1/volumes/data", params={"namespace": "user-1002"})).status_code == 403
    assert (await ann.post("/v1/volumes:prune", params={"namespace": "user-1002"})).status_code == 403
    spaces = (await world.store.list(core.Namespace)).items
    marked = {one.metadata.name for one in spaces if "fairlead.dev/tenancy" in one.metadata.labels}
    assert {"user-1001", "user-1002"} <= marked


async def test_the_first_volume_of_a_user_makes_their_namespace_a_tenants(as_user: As, world: World) -> None:
    assert (await as_user(1003).post("/v1/volumes", json={"name": "data"})).status_code == 201
    space = await world.store.get(core.Namespace, "user-1003")
    assert "fairlead.dev/tenancy" in space.metadata.labels


async def test_a_folder_of_the_host_is_refused_with_the_named_volume_as_the_way(as_user: As) -> None:
    asked = {"image": "demo", "binds": [{"host_path": "/home/ann", "container_path": "/data"}]}
    refused = await as_user(1001).post("/v1/containers", json=asked)
    assert refused.status_code == 403
    assert "-v NAME:/PATH" in refused.json()["detail"]


async def test_a_quota_counts_volumes(as_user: As) -> None:
    root = as_user(0)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"persistentvolumeclaims": "1"}},
    }
    await root.put("/v1/quotas", json=quota)
    await root.post("/v1/volumes", json={"name": "one"})
    assert (await root.post("/v1/volumes", json={"name": "one"})).status_code == 201
    refused = await root.post("/v1/volumes", json={"name": "two"})
    assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")
    assert "used: persistentvolumeclaims=1, limited: persistentvolumeclaims=1" in refused.json()["detail"]
    (shown,) = (await root.get("/v1/quotas")).json()["items"]
    assert shown["used"] == {"persistentvolumeclaims": "1"}


async def test_a_refused_container_leaves_no_volumes(as_user: As) -> None:
    root = as_user(0)
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"persistentvolumeclaims": "3"}},
    }
    await root.put("/v1/quotas", json=quota)
    for asked in (_mounting("a", "b", "c", "d"), _mounting("a", gpus=-1), _mounting("a", "b", cpu="two")):
        for path in ("/v1/containers?dry_run=true", "/v1/containers"):
            refused = await root.post(path, json=asked)
            assert refused.status_code in {403, 422}, refused.text
    assert (await root.get("/v1/volumes")).json()["items"] == []
    assert (await root.post("/v1/containers", json=_mounting("a", "b", "c", name="fits"))).status_code == 201


@pytest.mark.parametrize("name", ["", "My_Data", "-a", "..", "a/b", "a\0", "ä", "a" * 254, "../../etc"])
async def test_a_name_that_is_not_one_is_refused(as_user: As, name: str) -> None:
    refused = await as_user(0).post("/v1/volumes", json={"name": name})
    assert (refused.status_code, refused.json()["reason"]) == (422, "VolumeNameInvalid")
    assert refused.json()["hint"]
