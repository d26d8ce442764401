"""Workloads of callers who are not root: their own are theirs alone, and their pods get no more than pods do."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests.unit.serve.v1.test_api_users import ANN, BEN, As, as_user  # noqa: F401 the fixture

_CONTAINER = {"name": "main", "image": "demo"}


def _document(kind: str, spec: dict[str, Any], **about: Any) -> dict[str, Any]:
    versions = {"Job": "batch/v1", "CronJob": "batch/v1", "Service": "v1", "PodDisruptionBudget": "policy/v1"}
    return {
        "apiVersion": versions.get(kind, "apps/v1"),
        "kind": kind,
        "metadata": {"name": "web", **about},
        "spec": spec,
    }


def _deployment(pod: dict[str, Any] | None = None, about: dict[str, Any] | None = None) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": "web"}, **(about or {})},
        "spec": {"containers": [_CONTAINER], **(pod or {})},
    }
    return _document("Deployment", {"selector": {"matchLabels": {"app": "web"}}, "template": template})


async def _apply(client: httpx.AsyncClient, *documents: dict[str, Any], **params: str) -> httpx.Response:
    body = "\n---\n".join(map(json.dumps, documents))
    return await client.post("/v1/apply", content=body, params=params)


async def _seen(client: httpx.AsyncClient, kind: str = "deployments", **params: str) -> list[str]:
    answer = await client.get(f"/v1/objects/{kind}", params=params)
    assert answer.status_code == 200, answer.text
    return [one["metadata"]["namespace"] for one in answer.json()["items"]]


async def test_each_user_has_workloads_of_their_own(as_user: As) -> None:  # noqa: F811 the fixture
    for uid in (ANN, BEN):
        made = await _apply(as_user(uid), _deployment())
        assert made.status_code == 200, made.text
        assert made.json()["items"][0]["namespace"] == f"user-{uid}"
    assert await _seen(as_user(ANN)) == [f"user-{ANN}"]
    assert await _seen(as_user(BEN), namespace="default") == [f"user-{BEN}"]
    assert await _seen(as_user(0)) == [f"user-{ANN}", f"user-{BEN}"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/v1/objects/deployments/web"),
        ("POST", "/v1/objects/deployments/web/:scale?replicas=0"),
        ("POST", "/v1/objects/deployments/web/:restart"),
        ("POST", "/v1/objects/deployments/web/:undo"),
        ("POST", "/v1/objects/deployments/web/:pause"),
        ("POST", "/v1/objects/deployments/web/:resume"),
        ("GET", "/v1/objects/deployments"),
        ("GET", "/v1/objects/secrets"),
    ],
)
async def test_another_users_workload_is_out_of_reach(as_user: As, method: str, path: str) -> None:  # noqa: F811
    assert (await _apply(as_user(BEN), _deployment())).status_code == 200
    named = f"{path}{'&' if '?' in path else '?'}namespace=user-{BEN}"
    other = await as_user(ANN).request(method, named)
    assert (other.status_code, other.json()["reason"]) == (403, "NamespaceForbidden"), other.text
    none = await as_user(ANN).request(method, named.replace(str(BEN), "nobody"))
    assert (none.status_code, none.json()["reason"]) == (403, "NamespaceForbidden"), none.text
    if method != "GET":
        own = await as_user(ANN).request(method, path)
        assert own.status_code in {200, 404}, own.text
        assert own.status_code == 404 or own.json()["action"] == "not found"
    assert await _seen(as_user(BEN)) == [f"user-{BEN}"]


async def test_a_user_lists_the_names_of_their_own_secrets(as_user: As) -> None:  # noqa: F811
    document = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "key"}, "stringData": {"token": "s3cret"}}
    for uid in (ANN, BEN):
        made = await _apply(as_user(uid), document)
        assert made.status_code == 200, made.text
    answer = await as_user(ANN).get("/v1/objects/secrets")
    assert [one["metadata"]["namespace"] for one in answer.json()["items"]] == [f"user-{ANN}"]
    assert answer.json()["items"][0]["data"] == {"token": ""}
    assert "s3cret" not in answer.text


@pytest.mark.parametrize("where", ["metadata", "query"])
async def test_nothing_is_applied_into_another_namespace(as_user: As, where: str) -> None:  # noqa: F811
    document, params = _deployment(), {}
    if where == "metadata":
        document["metadata"]["namespace"] = f"user-{BEN}"
    else:
        params["namespace"] = f"user-{BEN}"
    answer = await _apply(as_user(ANN), document, **params)
    assert (answer.status_code, answer.json()["reason"]) == (403, "NamespaceForbidden"), answer.text
    gone = await as_user(ANN).post("/v1/delete", content=json.dumps(document), params=params)
    assert (gone.status_code, gone.json()["reason"]) == (403, "NamespaceForbidden"), gone.text
    assert await _seen(as_user(0)) == []


@pytest.mark.parametrize(
    ("pod", "about", "words"),
    [
        ({"volumes": [{"name": "v", "hostPath": {"path": "/etc"}}]}, {}, "/etc"),
        ({"hostNetwork": True}, {}, "hostNetwork"),
        ({"hostPID": True}, {}, "hostPID"),
        ({"nodeName": "one"}, {}, "nodeName"),
        ({"priorityClassName": "system-node-critical"}, {}, "priority"),
        ({"containers": [{**_CONTAINER, "securityContext": {"privileged": True}}]}, {}, "privileged"),
        ({"initContainers": [{**_CONTAINER, "name": "i", "securityContext": {"privileged": True}}]}, {}, "privileged"),
        ({}, {"annotations": {"cdi.k8s.io/x": "nvidia.com/gpu=all"}}, "annotation"),
        ({}, {"annotations": {"fairlead.dev/step": "{}"}}, "fairlead.dev"),
        ({}, {"labels": {"app": "web", "fairlead.dev/tenancy": "x"}}, "fairlead.dev"),
    ],
)
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "CronJob"])
async def test_a_template_gets_no_more_than_a_pod(
    as_user: As,  # noqa: F811 the fixture
    kind: str,
    pod: dict[str, Any],
    about: dict[str, Any],
    words: str,
) -> None:
    document = {**_deployment(pod, about), "kind": kind}
    if kind in {"Job", "CronJob"}:
        template = document["spec"]["template"]
        template["spec"]["restartPolicy"] = "Never"
        spec: dict[str, Any] = {"template": template}
        document = _document(kind, {"schedule": "@daily", "jobTemplate": {"spec": spec}} if kind == "CronJob" else spec)
    answer = await _apply(as_user(ANN), document)
    assert (answer.status_code, words in answer.json()["detail"]) == (403, True), answer.text
    assert await _seen(as_user(0), f"{kind.lower()}s") == []


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"finalizers": ["a.b/c"]}, "finalizers"),
        ({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}, "ownerReferences"),
        ({"annotations": {"fairlead.dev/most-devices": "99"}}, "fairlead.dev"),
        ({"annotations": {"fairlead.dev/tenant": "user-0"}}, "fairlead.dev"),
    ],
)
async def test_what_keeps_or_marks_a_workload_is_not_its_makers(
    as_user: As,  # noqa: F811 the fixture
    about: dict[str, Any],
    words: str,
) -> None:
    document = _deployment()
    document["metadata"] |= about
    answer = await _apply(as_user(ANN), document)
    assert (answer.status_code, words in answer.json()["detail"]) == (403, True), answer.text


async def test_a_user_s_budget_would_keep_their_pods_from_every_queue(as_user: As) -> None:  # noqa: F811
    document = _document("PodDisruptionBudget", {"selector": {}, "minAvailable": 100})
    answer = await _apply(as_user(ANN), document)
    assert (answer.status_code, answer.json()["reason"]) == (403, "UserPodForbidden"), answer.text
    assert (await _apply(as_user(0), document)).status_code == 200
