"""Claims over the API: what each holds and why it waits, in the caller's own namespace alone."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import pytest

from fairlead.serve.v1.claims import view
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from tests.unit.serve.v1.containers.test_api_claims import As, as_user
from tests.unit.serve.v1.test_api_users import ANN, BEN
from tests.unit.serve.world import World

__all__ = ["as_user"]
_REQUEST = {"name": "gpus", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 2}}


def _claim(namespace: str, **fields: Any) -> ResourceClaim:
    about = {"name": "mine", "namespace": namespace}
    body = {"metadata": about, "spec": {"devices": {"requests": [_REQUEST]}}, **fields}
    found = dialect.read({"apiVersion": dialect.V1, "kind": "ResourceClaim", **body}).item
    assert isinstance(found, ResourceClaim)
    return found


async def test_each_user_sees_and_removes_their_own_claims(as_user: As, world: World) -> None:
    for uid in (ANN, BEN):
        await world.store.create(_claim(f"user-{uid}"))
    (shown,) = (await as_user(ANN).get("/v1/claims")).json()["items"]
    assert (shown["namespace"], shown["state"], shown["requests"][0]["count"]) == (f"user-{ANN}", "waiting", 2)
    assert len((await as_user(0).get("/v1/claims")).json()["items"]) == 2
    for method in ("GET", "DELETE"):
        refused = await as_user(ANN).request(method, f"/v1/claims/mine?namespace=user-{BEN}")
        assert (refused.status_code, refused.json()["reason"]) == (403, "NamespaceForbidden")
    assert (await as_user(ANN).get("/v1/claims/mine")).json()["namespace"] == f"user-{ANN}"
    assert (await as_user(ANN).delete("/v1/claims/mine")).status_code == 204
    (left,) = (await world.store.list(ResourceClaim)).items
    assert left.metadata.namespace == f"user-{BEN}"


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_a_claim_that_is_not_there_is_not_found(api: httpx.AsyncClient, method: str) -> None:
    refused = await api.request(method, "/v1/claims/nosuch")
    assert (refused.status_code, refused.json()["reason"]) == (404, "ClaimNotFound")


def test_a_claim_says_what_it_holds_and_who_uses_it() -> None:
    result = {"request": "gpus", "driver": "d", "pool": "here", "device": "gpu-0"}
    status = {
        "allocation": {"devices": {"results": [result]}},
        "reservedFor": [{"resource": "pods", "name": "train", "uid": "u"}],
    }
    found = view.claim_view(_claim("default", status=status), ())
    assert (found.state, found.devices, found.used_by, found.message) == (
        "allocated",
        ("d/here/gpu-0",),
        ("train",),
        "",
    )


def test_a_claim_says_why_it_waits() -> None:
    reference = core.PodResourceClaim(name="gpus", resource_claim_name="mine")
    condition = meta.Condition(type="PodScheduled", status="False", reason="Unschedulable", message="no room")
    pod = core.Pod(
        metadata=meta.ObjectMeta(name="train", namespace="default"),
        spec=core.PodSpec(resource_claims=(reference,)),
        status=core.PodStatus(phase="Pending", conditions=(condition,)),
    )
    assert view.claim_view(_claim("default"), (pod,)).message == "train waits: no room"
    over = msgspec.structs.replace(pod, status=core.PodStatus(phase="Failed"))
    assert "no container that waits names it" in view.claim_view(_claim("default"), (over,)).message


def test_all_devices_and_alternatives_are_shown() -> None:
    first = {"name": "a", "deviceClassName": "big", "allocationMode": "All"}
    claim = _claim("default", spec={"devices": {"requests": [{"name": "r", "firstAvailable": [first]}]}})
    (request,) = view.claim_view(claim, ()).requests
    assert (request.device_class, request.count) == ("big", 0)
