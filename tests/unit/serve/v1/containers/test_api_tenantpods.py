"""The standalone API holds tenants' pods to the rules of the cluster's policy, and nobody else's."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from fairlead.wire.kubernetes import core, meta
from tests import tenantpods
from tests.unit.serve.world import World


@pytest.fixture
async def acme(world: World) -> str:
    """A tenant's namespace."""
    about = meta.ObjectMeta(name="acme", labels={"fairlead.dev/tenancy": "acme"})
    await world.store.create(core.Namespace(metadata=about))
    await world.store.create(core.Namespace(metadata=meta.ObjectMeta(name="plain")))
    return "acme"


async def _submit(api: httpx.AsyncClient, pod: dict[str, Any], namespace: str) -> httpx.Response:
    named = {**pod, "metadata": {"name": "one", **pod.get("metadata", {})}}
    text = json.dumps({"apiVersion": "v1", "kind": "Pod", **named})
    return await api.post("/v1/pods", params={"namespace": namespace}, content=text)


async def test_a_tenants_manifest_is_refused_as_on_a_cluster(api: httpx.AsyncClient, acme: str) -> None:
    for pod, words in tenantpods.REFUSED:
        if tenantpods.is_of_clusters(pod):
            continue
        answer = await _submit(api, pod, acme)
        body = answer.json()
        assert (answer.status_code, body["reason"]) == (403, "TenantPodForbidden"), (pod, body)
        assert words in body["detail"]
    listed = await api.get("/v1/containers", params={"all": "true"})
    assert listed.json()["items"] == []


async def test_volumes_that_only_a_cluster_has_are_refused_to_everybody(api: httpx.AsyncClient, acme: str) -> None:
    pods = [
        pod for pod in (*(pod for pod, _ in tenantpods.REFUSED), *tenantpods.TAKEN) if tenantpods.is_of_clusters(pod)
    ]
    assert len(pods) == 13
    for pod in pods:
        for namespace in (acme, "plain"):
            answer = await _submit(api, pod, namespace)
            assert (answer.status_code, answer.json()["reason"]) in {(422, "PodInvalid"), (422, "VolumeNotFound")}, pod


async def test_a_tenants_plain_pod_is_taken(api: httpx.AsyncClient, acme: str) -> None:
    for number, pod in enumerate(pod for pod in tenantpods.TAKEN if not tenantpods.is_of_clusters(pod)):
        about = {"metadata": {**pod.get("metadata", {}), "name": f"p{number}"}}
        answer = await _submit(api, {**pod, **about}, acme)
        assert answer.status_code == 201, (pod, answer.text)


async def test_the_administrators_own_namespaces_are_left_alone(api: httpx.AsyncClient, acme: str) -> None:
    for number, pod in enumerate((tenantpods.path("/dev"), tenantpods.spec(hostPID=True))):
        answer = await _submit(api, {**pod, "metadata": {"name": f"p{number}"}}, "plain")
        assert answer.status_code == 201, answer.text


@pytest.mark.parametrize("tenancy", ["fresh", "plain", "acme"])
async def test_a_container_asked_for_by_tenancy_binds_no_folder_of_the_host(
    api: httpx.AsyncClient, acme: str, tenancy: str
) -> None:
    for text, shown in (("/var/run/cdi", "/run/cdi"), ("/dev//", "/dev"), ("/", "/")):
        bind = {"host_path": text, "container_path": "/x"}
        answer = await api.post("/v1/containers", json={"image": "demo", "tenancy": tenancy, "binds": [bind]})
        assert answer.status_code == 403
        assert f"hostPath {shown} leads to GPU devices" in answer.json()["detail"]
    assert (await api.post("/v1/containers", json={"image": "demo", "tenancy": tenancy})).status_code == 201


async def test_a_namespaces_list_of_images_binds_its_pods(api: httpx.AsyncClient, world: World) -> None:
    about = meta.ObjectMeta(name="listed", labels={"fairlead.dev/tenancy": "x"}, annotations=tenantpods.LIMITS)
    await world.store.create(core.Namespace(metadata=about))
    answer = await _submit(api, tenantpods.imaged("evil/x:1"), "listed")
    assert (answer.status_code, answer.json()["reason"]) == (403, "TenantPodForbidden")
    assert "container main (evil/x:1) has an image that is not among those" in answer.json()["detail"]
    assert (await _submit(api, tenantpods.imaged("localhost/box:1"), "listed")).status_code == 201


async def test_a_namespace_that_a_quota_made_is_a_tenants(api: httpx.AsyncClient, world: World) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "held"}}
    text = json.dumps({**quota, "spec": {"hard": {"pods": "4"}}})
    assert (await api.put("/v1/quotas", content=text)).status_code == 200
    assert (await _submit(api, tenantpods.path("/dev"), "held")).status_code == 403
    await world.store.create(core.Namespace(metadata=meta.ObjectMeta(name="there")))
    kept = json.dumps({**quota, "metadata": {"name": "q", "namespace": "there"}, "spec": {"hard": {"pods": "4"}}})
    assert (await api.put("/v1/quotas", content=kept)).status_code == 200
    assert (await _submit(api, tenantpods.path("/dev"), "there")).status_code == 201


async def test_a_namespace_made_for_a_tenancy_stays_a_tenants(api: httpx.AsyncClient, world: World) -> None:
    assert (await api.post("/v1/containers", json={"image": "demo", "tenancy": "fresh"})).status_code == 201
    made = await world.store.get(core.Namespace, "fresh")
    assert made.metadata.labels == {"fairlead.dev/tenancy": "fresh"}
    assert (await _submit(api, tenantpods.path("/dev"), "fresh")).status_code == 403
