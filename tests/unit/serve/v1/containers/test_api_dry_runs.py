"""`?dry_run=` checks what a request would do and stores nothing; `?wait=` answers once it has come to that."""

from __future__ import annotations

import collections
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead import errors
from fairlead.serve.v1.containers import waitview
from fairlead.store import port as stores
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core
from tests.unit.serve.v1.accounts.test_api_accounts import Lab, opened
from tests.unit.serve.v1.accounts.test_api_accounts_on_cluster import ClusterLab
from tests.unit.serve.v1.accounts.test_api_accounts_on_cluster import lab as on_cluster
from tests.unit.serve.world import World

__all__ = ["on_cluster"]
census = waitview.Census
_QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "few", "namespace": "default"},
    "spec": {"hard": {"requests.nvidia.com/gpu": "1"}},
}
_TRAIN = {"image": "demo", "name": "train", "command": ["sleep", "60"]}


async def test_a_dry_run_stores_nothing_and_says_why_it_would_wait(door: httpx.AsyncClient, world: World) -> None:
    body = _TRAIN | {"gpus": 2, "volumes": [{"name": "data", "container_path": "/data"}]}
    answer = await door.post("/v1/containers?dry_run=true", json=body)
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["name"], shown["uid"], shown["state"], shown["gpus"]) == ("train", "", "pending", 2)
    assert "there is room" in shown["waiting"]["message"]
    never = (await door.post("/v1/containers?dry_run=true", json=_TRAIN | {"gpus": 5})).json()
    assert "will never fit" in never["waiting"]["message"]
    assert (await world.store.list(core.Pod)).items == ()
    assert (await world.store.list(core.PersistentVolumeClaim)).items == ()


async def test_a_dry_run_is_refused_as_the_request_itself_would_be(door: httpx.AsyncClient, world: World) -> None:
    assert (await door.put("/v1/quotas", json=_QUOTA)).is_success
    assert (await door.post("/v1/containers", json=_TRAIN)).status_code == 201
    for body, status, reason in (
        (_TRAIN, 409, "AlreadyExists"),
        (_TRAIN | {"name": "more", "gpus": 2}, 403, "Forbidden"),
        (_TRAIN | {"name": "No Name"}, 422, None),
        ({"image": ""}, 422, "ImageRequired"),
    ):
        dry = await door.post("/v1/containers?dry_run=true", json=body)
        wet = await door.post("/v1/containers", json=body)
        assert (dry.status_code, dry.json()) == (wet.status_code, wet.json()), body
        assert dry.status_code == status
        assert reason in {None, dry.json()["reason"]}
    assert len((await world.store.list(core.Pod)).items) == 1


async def test_a_manifest_is_judged_pod_by_pod(door: httpx.AsyncClient, world: World) -> None:
    pod = """
apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  containers: [{name: main, image: demo}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: CLAIM}}]
---
"""
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {}\n"
    good = pod.replace("NAME", "a").replace("CLAIM", "data") + claim
    answer = await door.post("/v1/pods?dry_run=true", content=good)
    assert (answer.status_code, [one["name"] for one in answer.json()["items"]]) == (200, ["a"]), answer.text
    bad = await door.post("/v1/pods?dry_run=true", content=pod.replace("NAME", "a").replace("CLAIM", "other"))
    assert bad.json()["reason"] == "VolumeNotFound"
    assert (await world.store.list(core.Pod)).items == ()


async def test_a_wait_answers_at_the_start_the_end_and_the_removal(door: httpx.AsyncClient) -> None:
    started = await door.post("/v1/containers?wait=20", json=_TRAIN)
    assert (started.status_code, started.json()["state"]) == (201, "running")
    stopped = await door.post("/v1/containers/train:stop?wait=20&grace=0")
    assert (stopped.status_code, stopped.json()["state"]) == (202, "stopped")
    gone = await door.delete("/v1/containers/train?wait=20")
    assert (gone.status_code, gone.json()["state"]) == (202, "gone")
    assert (await door.get("/v1/containers/train")).status_code == 404


async def test_a_wait_that_is_over_answers_with_the_state_of_now(door: httpx.AsyncClient, world: World) -> None:
    world.may_start.clear()
    late = await door.post("/v1/containers?wait=0.05", json=_TRAIN)
    assert (late.status_code, late.json()["state"]) in {(201, "pending"), (201, "creating")}
    assert (await door.post("/v1/containers?wait=-1", json=_TRAIN | {"name": "other"})).status_code == 400


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        yield made


async def test_a_tenancy_is_judged_and_not_made(lab: Lab) -> None:
    answer = await lab.ask("root", "POST", "/v1/tenancies?dry_run=true", json={"name": "green"})
    assert (answer.status_code, answer.json()["name"]) == (200, "green")
    with pytest.raises(errors.NotFound):
        await lab.world.store.get(Tenancy, "green")
    there = await lab.ask("root", "POST", "/v1/tenancies?dry_run=true", json={"name": "red"})
    assert (there.status_code, there.json()["reason"]) == (409, "AlreadyExists")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/v1/tenancies/red?dry_run=true"),
        ("DELETE", "/v1/tenancies/red?dryRun=All"),
        ("POST", "/v1/volumes?dry_run=true"),
        ("POST", "/v1/containers?dry-run=true"),
        ("POST", "/v1/containers?dryRun=All"),
        ("POST", "/v1/containers?dry_run=true&dry_run=false"),
        ("POST", "/v1/tenancies?DRY_RUN="),
    ],
)
async def test_a_dry_run_is_never_carried_out_in_earnest(lab: Lab, method: str, path: str) -> None:
    """Also where a route knows none, or it is written as another program's."""
    answer = await lab.ask("root", method, path, json={"name": "more", "image": "demo"})
    assert (answer.status_code, answer.json()["reason"]) == (400, "DryRunUnsupported"), answer.text
    assert (await lab.ask("root", "GET", "/v1/tenancies/red")).json()["phase"] == "Ready"
    for path_of in ("volumes", "containers"):
        assert (await lab.ask("root", "GET", f"/v1/{path_of}")).json()["items"] == []
    assert (await lab.ask("root", "GET", "/v1/tenancies/more")).status_code == 404


async def test_what_a_manifest_has_beside_its_pods_is_judged_too(lab: Lab) -> None:
    top = "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: top}\nvalue: 1000\n"
    claim = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data, namespace: NAMESPACE}\nspec: {}\n"
    for body in (top, claim.replace("NAMESPACE", lab.namespaces["blue"])):
        dry = await lab.ask("developer", "POST", "/v1/pods?dry_run=true", content=body)
        wet = await lab.ask("developer", "POST", "/v1/pods", content=body)
        assert (dry.status_code, dry.json()["reason"]) == (wet.status_code, wet.json()["reason"]), body
        assert dry.status_code in {403, 404}


async def test_a_manifest_of_many_is_judged_by_one_look_at_nodes_and_pods(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every other request waits meanwhile."""
    looks = list[waitview.Census]()

    def looked(*args: Any, **more: Any) -> waitview.Census:
        looks.append(census(*args, **more))
        return looks[-1]

    listed = list[tuple[str, str | None]]()

    async def listing(self: Any, kind: Any, selector: stores.Selector = stores.EVERYTHING) -> Any:
        listed.append((kind.KIND, selector.namespace))
        return await one_list(self, kind, selector)

    one_list = type(lab.world.store).list
    monkeypatch.setattr(waitview, "Census", looked)
    monkeypatch.setattr(type(lab.world.store), "list", listing)
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\nspec: {containers: [{name: main, image: demo}]}\n"
    many = "---\n".join(pod.replace("NAME", f"p{number}") for number in range(20))
    answer = await lab.ask("developer", "POST", "/v1/pods?dry_run=true", content=many)
    assert (len(answer.json()["items"]), len(looks)) == (20, 1)
    assert max(collections.Counter(listed).values()) < 5, listed


async def test_a_tenants_dry_run_is_judged_in_their_tenancy_and_by_their_role(lab: Lab) -> None:
    body = {"image": "demo", "tenancy": "red"}
    answer = await lab.ask("developer", "POST", "/v1/containers?dry_run=true", json=body)
    assert (answer.status_code, answer.json()["namespace"]) == (200, lab.namespaces["red"])
    assert (await lab.ask("viewer", "POST", "/v1/containers?dry_run=true", json=body)).status_code == 403
    assert (await lab.ask("stranger", "POST", "/v1/containers?dry_run=true", json=body)).status_code == 404


async def test_on_a_cluster_the_api_server_judges(on_cluster: ClusterLab) -> None:
    body = {"image": "demo", "name": "train", "tenancy": "red"}
    answer = await on_cluster.ask("ann", "POST", "/v1/containers?dry_run=true", json=body)
    assert answer.status_code == 200, answer.text
    assert [one.metadata.namespace for one in on_cluster.server.judged] == [on_cluster.namespaces["red"]]
    on_cluster.server.refusal = errors.Denied("exceeded quota", reason="Forbidden")
    refused = await on_cluster.ask("ann", "POST", "/v1/containers?dry_run=true", json=body)
    assert (refused.status_code, refused.json()["detail"]) == (403, "exceeded quota")
    assert (await on_cluster.world.store.list(core.Pod)).items == ()
