"""Claims of devices at the API's door: an API server's words, each caller in their own place, classes are root's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

from fairlead.serve.v1 import dependencies
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from fairlead.wire.kubernetes.resource.devicetaintrule import DeviceTaintRule
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim, ResourceClaimTemplate
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from tests.unit.serve.v1.test_api_users import ANN, BEN, connected
from tests.unit.serve.world import World, application, in_process

_HEAD = "apiVersion: resource.k8s.io/v1\n"
_REQUEST = "{name: gpus, exactly: {deviceClassName: gpu, count: 2}}"
_CLAIM = f"""{_HEAD}kind: ResourceClaim
metadata: {{name: mine}}
spec: {{devices: {{requests: [{_REQUEST}]}}}}
"""
_TEMPLATE = f"""{_HEAD}kind: ResourceClaimTemplate
metadata: {{name: two}}
spec: {{spec: {{devices: {{requests: [{_REQUEST}]}}}}}}
"""
_CLASS = f"""{_HEAD}kind: DeviceClass
metadata: {{name: gpu}}
spec: {{selectors: [{{cel: {{expression: 'device.driver == "gpu.example.com"'}}}}]}}
"""
_SLICE = f"""{_HEAD}kind: ResourceSlice
metadata: {{name: here-a}}
spec:
  driver: gpu.example.com
  nodeName: here
  pool: {{name: here, generation: 1, resourceSliceCount: 1}}
  devices: [{{name: gpu-0}}]
"""
_RULE = f"""{_HEAD}kind: DeviceTaintRule
metadata: {{name: sick}}
spec: {{deviceSelector: {{driver: gpu.example.com}}, taint: {{key: sick, effect: NoExecute}}}}
"""
_POD = """apiVersion: v1
kind: Pod
metadata: {name: train}
spec:
  restartPolicy: Never
  resourceClaims: [{name: gpus, resourceClaimName: mine}]
  containers:
  - {name: main, image: demo, command: [sleep, "60"], resources: {claims: [{name: gpus}]}}
"""
_CLUSTERS: dict[type[Any], str] = {DeviceClass: _CLASS, ResourceSlice: _SLICE, DeviceTaintRule: _RULE}

As = Callable[[int | None], httpx.AsyncClient]


@pytest.fixture
def as_user(world: World) -> As:
    callers = dependencies.Callers(most_devices=2, masters=frozenset({0}))
    made = application(replace(world.services, callers=callers))

    def client(uid: int | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=in_process(connected(made, uid)), base_url="http://test")

    return client


async def _post(client: httpx.AsyncClient, *documents: str, **query: Any) -> httpx.Response:
    return await client.post("/v1/pods", content="---\n".join(documents), params=query)


async def test_a_manifest_makes_its_claims_before_its_pods(api: httpx.AsyncClient, world: World) -> None:
    answer = await _post(api, _POD, _CLAIM, _TEMPLATE, *_CLUSTERS.values())
    assert (answer.status_code, answer.json().get("warnings", [])) == (201, [])
    claim = await world.store.get(ResourceClaim, "mine", "default")
    (request,) = claim.spec.devices.requests or ()
    assert request.exactly is not None
    assert (request.exactly.allocation_mode, request.exactly.count) == ("ExactCount", 2)
    assert (await world.store.get(ResourceClaimTemplate, "two", "default")).spec.spec.devices == claim.spec.devices
    for kind in _CLUSTERS:
        assert len((await world.store.list(kind)).items) == 1
    pod = await world.pod("train")
    assert pod.spec.resource_claims[0].resource_claim_name == "mine"
    assert [one.name for one in pod.spec.containers[0].resources.claims] == ["gpus"]


async def test_a_claim_that_is_there_stays_and_is_never_another_one(api: httpx.AsyncClient, world: World) -> None:
    await _post(api, _CLAIM, _CLASS)
    before = await world.store.get(ResourceClaim, "mine", "default")
    assert (await _post(api, _CLAIM, _CLASS)).status_code == 201
    assert await world.store.get(ResourceClaim, "mine", "default") == before
    refused = await _post(api, _CLAIM.replace("count: 2", "count: 3"))
    assert (refused.status_code, refused.json()["reason"]) == (422, "ResourceClaimInvalid")
    assert "immutable" in refused.json()["detail"]
    changed = _CLASS.replace("gpu.example.com", "other.example.com")
    assert (await _post(api, changed)).status_code == 201
    (selector,) = (await world.store.get(DeviceClass, "gpu")).spec.selectors
    assert selector.cel is not None
    assert "other" in selector.cel.expression


@pytest.mark.parametrize(
    ("document", "was", "becomes", "words"),
    [
        (_CLAIM, "deviceClassName: gpu", "deviceClassName: UPPER", "spec.devices.requests[0].exactly.deviceClassName"),
        (_CLAIM, "count: 2", "count: -1", "spec.devices.requests[0].exactly.count"),
        (_CLAIM, "count: 2", "cuont: 2", 'unknown field, did you mean "count"?'),
        (_TEMPLATE, "name: gpus", "name: ''", "spec.spec.devices.requests[0].name: Invalid value"),
        (_CLASS, "device.driver ==", "device.nosuch ==", "spec.selectors[0].cel.expression"),
        (_SLICE, "name: gpu-0", "name: GPU_0", "spec.devices[0].name"),
        (_RULE, "key: sick", "key: ''", "spec.taint.key"),
    ],
)
async def test_what_an_api_server_refuses_is_refused_by_its_field(
    api: httpx.AsyncClient, world: World, document: str, was: str, becomes: str, words: str
) -> None:
    for query in ({}, {"dry_run": "true"}):
        refused = await _post(api, document.replace(was, becomes), **query)
        assert refused.status_code == 422
        assert words in refused.json()["detail"]
    assert not (await world.store.list(ResourceClaim)).items


async def test_fields_of_features_that_are_off_are_dropped_and_said(api: httpx.AsyncClient, world: World) -> None:
    derived = "derivedAttributes: [{name: example.com/x, expression: '1'}]"
    text = _CLAIM.replace("count: 2", f"count: 2, {derived}")
    for query in ({"dry_run": "true"}, {}):
        (warning,) = (await _post(api, text, **query)).json()["warnings"]
        path = "spec.devices.requests[0].exactly.derivedAttributes"
        assert warning == f"ResourceClaim mine: {path} is left out: its feature is off"
    claim = await world.store.get(ResourceClaim, "mine", "default")
    assert not (claim.spec.devices.requests or ())[0].exactly.derived_attributes  # type: ignore[union-attr]


async def test_a_trial_stores_nothing(api: httpx.AsyncClient, world: World) -> None:
    answer = await _post(api, _CLAIM, _CLASS, _POD, dry_run="true")
    assert answer.status_code == 200
    assert not (await world.store.list(ResourceClaim)).items
    assert not (await world.store.list(DeviceClass)).items


async def test_the_status_of_a_claim_is_nobodys_to_write(api: httpx.AsyncClient, world: World) -> None:
    result = "{request: gpus, driver: gpu.example.com, pool: here, device: gpu-0}"
    await _post(api, f"{_CLAIM}status: {{allocation: {{devices: {{results: [{result}]}}}}}}\n")
    assert (await world.store.get(ResourceClaim, "mine", "default")).status.allocation is None


async def test_a_container_that_names_a_claim_of_another_pod_is_refused_by_its_field(api: httpx.AsyncClient) -> None:
    refused = await _post(api, _POD.replace("claims: [{name: gpus}]", "claims: [{name: other}]"))
    path = "spec.containers[0].resources.claims[0]"
    rule = "must be one of the names in pod.spec.resourceClaims: gpus"
    assert f'{path}: Not found: "other": {rule}' in refused.json()["detail"]


async def test_each_user_has_claims_of_their_own(as_user: As, world: World) -> None:
    for uid in (ANN, BEN):
        assert (await _post(as_user(uid), _CLAIM, _TEMPLATE)).status_code == 201
    found = (await world.store.list(ResourceClaim)).items
    assert [one.metadata.namespace for one in found] == [f"user-{ANN}", f"user-{BEN}"]
    other = _CLAIM.replace("name: mine", f"name: theirs, namespace: user-{BEN}")
    refused = await _post(as_user(ANN), other)
    assert (refused.status_code, refused.json()["reason"]) == (403, "NamespaceForbidden")


@pytest.mark.parametrize("kind", list(_CLUSTERS))
async def test_what_concerns_every_tenant_is_roots(as_user: As, world: World, kind: type[Any]) -> None:
    for query in ({}, {"dry_run": "true"}):
        refused = await _post(as_user(ANN), _CLUSTERS[kind], **query)
        assert (refused.status_code, refused.json()["reason"]) == (403, "RootOnly")
    assert not (await world.store.list(kind)).items


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        ("count: 2", "adminAccess: true"),
        ("name: mine", "name: mine, finalizers: [example.com/keep]"),
        ("name: mine", "name: mine, ownerReferences: [{apiVersion: v1, kind: Pod, name: p, uid: u}]"),
    ],
)
async def test_a_users_claim_may_not_ask_for_what_is_roots(as_user: As, was: str, becomes: str) -> None:
    text = _CLAIM.replace(was, becomes)
    refused = await _post(as_user(ANN), text)
    assert (refused.status_code, refused.json()["reason"]) == (403, "UserClaimForbidden")
    assert (await _post(as_user(0), text)).status_code == 201


async def test_admin_access_in_a_tenants_namespace_needs_its_label(as_user: As, world: World) -> None:
    labels = {"fairlead.dev/tenancy": "x"}
    await world.store.create(core.Namespace(metadata=meta.ObjectMeta(name="team", labels=labels)))
    text = _CLAIM.replace("count: 2", "adminAccess: true").replace("name: mine", "name: mine, namespace: team")
    refused = await _post(as_user(0), text)
    assert "resource.kubernetes.io/admin-access" in refused.json()["detail"]


async def test_the_machines_limit_and_quotas_count_what_claims_ask_for(as_user: As, world: World) -> None:
    assert (await _post(as_user(ANN), _CLAIM)).status_code == 201
    refused = await _post(as_user(ANN), _CLAIM.replace("name: mine", "name: more"))
    assert (refused.status_code, refused.json()["reason"]) == (403, "Forbidden")
    name = "gpu.deviceclass.resource.k8s.io/devices"
    assert f"requested: {name}=2, used: {name}=2, limited: {name}=2" in refused.json()["detail"]
    limit = core.ResourceQuotaSpec(hard={"count/resourceclaims.resource.k8s.io": "1"})
    await world.store.create(core.ResourceQuota(metadata=meta.ObjectMeta(name="q", namespace="default"), spec=limit))
    assert (await _post(as_user(0), _CLAIM)).status_code == 201
    refused = await _post(as_user(0), _CLAIM.replace("name: mine", "name: more"))
    assert "exceeded quota: q" in refused.json()["detail"]


# claims of a request for one container


async def _run(client: httpx.AsyncClient, name: str = "train", **more: Any) -> httpx.Response:
    return await client.post("/v1/containers", json={"image": "demo", "name": name, "command": ["sleep", "60"], **more})


_WHERE = "model=H100,memory>=40Gi,numa=same"


async def test_a_request_with_conditions_gets_a_claim_of_its_own(api: httpx.AsyncClient, world: World) -> None:
    made = await _run(api, gpus=2, where=_WHERE)
    assert made.status_code == 201
    assert (await _run(api, "other", gpus=2, where=_WHERE)).status_code == 201
    (template,) = (await world.store.list(ResourceClaimTemplate)).items
    (request,) = template.spec.spec.devices.requests or ()
    assert request.exactly is not None
    assert (request.exactly.device_class_name, request.exactly.count) == ("gpu.nvidia.com", 2)
    assert len(request.exactly.selectors) == 2
    (constraint,) = template.spec.spec.devices.constraints
    assert constraint.match_attribute == "resource.kubernetes.io/numaNode"
    pod = await world.pod("train")
    assert pod.spec.resource_claims[0].resource_claim_template_name == template.metadata.name
    assert [one.name for one in pod.spec.containers[0].resources.claims] == ["gpus"]
    assert not pod.spec.containers[0].resources.limits
    named = {"name": "gpus", "claim": "", "template": template.metadata.name, "devices": [], "resources": []}
    assert made.json()["claims"] == [named]


async def test_a_class_alone_makes_a_claim_of_one_device(api: httpx.AsyncClient, world: World) -> None:
    assert (await _run(api, device_class="mig.nvidia.com")).status_code == 201
    (template,) = (await world.store.list(ResourceClaimTemplate)).items
    (request,) = template.spec.spec.devices.requests or ()
    assert request.exactly is not None
    assert (request.exactly.device_class_name, request.exactly.count) == ("mig.nvidia.com", 1)


async def test_a_request_names_claims_and_templates_that_are_there(api: httpx.AsyncClient, world: World) -> None:
    await _post(api, _CLAIM.replace("name: mine", "name: my.own"), _TEMPLATE)
    made = await _run(api, claims=[{"name": "my.own"}, {"name": "two", "template": "two"}])
    assert made.json()["claims"] == [
        {"name": "claim-0", "claim": "my.own", "template": "", "devices": [], "resources": []},
        {"name": "two", "claim": "", "template": "two", "devices": [], "resources": []},
    ]
    for claims in ([{"name": "nosuch"}], [{"name": "x", "template": "nosuch"}]):
        refused = await _run(api, "other", claims=claims)
        assert (refused.status_code, refused.json()["reason"]) == (422, "ClaimNotFound")
    twice = await _run(api, "other", claims=[{"name": "two", "template": "two"}] * 2)
    assert "Duplicate value" in twice.json()["detail"]


async def test_a_user_cannot_name_a_claim_of_another(as_user: As) -> None:
    await _post(as_user(BEN), _CLAIM)
    refused = await _run(as_user(ANN), claims=[{"name": "mine"}])
    assert (refused.status_code, refused.json()["reason"]) == (422, "ClaimNotFound")
    assert (await _run(as_user(ANN), where="model=H100")).status_code == 201


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"where": "modle=H100"}, "WhereInvalid"),
        ({"where": "memory>=40Gi", "gpus": 33}, "GPUsInvalid"),
        ({"where": "memory>=40Gi", "gpus": 0}, "GPUsInvalid"),
        ({"where": "memory>=40Gi", "gpus": "half\0"}, "GPUsInvalid"),
        ({"where": "memory>=40Gi", "gpus": "9" * 5000}, "GPUsInvalid"),
        ({"where": "memory>=40Gi", "gpus": 1.5}, "GPUsInvalid"),
        ({"device_class": "A\0"}, "DeviceClassInvalid"),
        ({"where": "brand=" + "x" * 10240}, "WhereInvalid"),
    ],
)
async def test_a_request_that_no_claim_can_mean_is_refused(
    api: httpx.AsyncClient, world: World, fields: dict[str, Any], reason: str
) -> None:
    for query in ("", "?dry_run=true"):
        refused = await api.post(f"/v1/containers{query}", json={"image": "demo", **fields})
        assert (refused.status_code, refused.json()["reason"]) == (422, reason)
    assert not (await world.store.list(ResourceClaimTemplate)).items


async def test_a_trial_says_that_nothing_publishes_devices_and_stores_nothing(
    api: httpx.AsyncClient, world: World
) -> None:
    answer = await api.post("/v1/containers?dry_run=true", json={"image": "demo", "where": "model=H100"})
    assert answer.json()["waiting"]["message"] == "no driver publishes devices (no ResourceSlice)"
    assert not (await world.store.list(ResourceClaimTemplate)).items


async def test_a_template_on_its_way_out_is_not_taken_up_again(api: httpx.AsyncClient, world: World) -> None:
    await _run(api, where="model=H100")
    (first,) = (await world.store.list(ResourceClaimTemplate)).items
    await world.store.delete(ResourceClaimTemplate, first.metadata.name, "default")
    await _run(api, "other", where="model=H100")
    pod = await world.pod("other")
    names = {one.metadata.name for one in (await world.store.list(ResourceClaimTemplate)).items}
    assert names == {first.metadata.name, pod.spec.resource_claims[0].resource_claim_template_name}
    assert len(names) == 2
