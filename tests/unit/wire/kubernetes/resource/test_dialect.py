from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.wire.kubernetes import api, core, meta
from fairlead.wire.kubernetes.resource import dialect
from fairlead.wire.kubernetes.resource.device import Device, DeviceAttribute
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice, ResourceSliceSpec

META = {"name": "one", "labels": {"a": "b"}}
SELECTOR = {
    "nodeSelectorTerms": [
        {
            "matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}],
            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}],
        }
    ]
}
TOLERATION = {"key": "k", "operator": "Exists", "value": "v", "effect": "NoExecute", "tolerationSeconds": 0}
CONDITION = {
    **{"type": "Ready", "status": "True", "reason": "Up", "message": "m", "observedGeneration": 3},
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
OPAQUE = {"driver": "d.example.com", "parameters": {"apiVersion": "x/v1", "n": [1, 2.5, None, {"a": None}]}}
DEVICES = {
    "deviceClassName": "gpu",
    "selectors": [{"cel": {"expression": "true"}}],
    "allocationMode": "All",
    "count": 2**63 - 1,
    "tolerations": [TOLERATION],
    "capacity": {"requests": {"memory": "1Gi", "d.example.com/cores": 2}},
    "derivedAttributes": [{"name": "a.b/c", "expression": "1"}],
}
CLAIM_SPEC = {
    "devices": {
        "requests": [
            {"name": "a", "exactly": {**DEVICES, "adminAccess": False}},
            {"name": "b", "firstAvailable": [{"name": "c", **DEVICES}]},
        ],
        "constraints": [
            {"requests": ["a", "b/c"], "matchAttribute": "a.b/c"},
            {"distinctAttribute": "a.b/d"},
        ],
        "config": [{"requests": ["a"], "opaque": OPAQUE}],
    }
}
STATUS = {
    "allocation": {
        "devices": {
            "results": [
                {
                    **{"request": "a", "driver": "d.example.com", "pool": "p", "device": "x", "adminAccess": False},
                    **{"tolerations": [TOLERATION], "bindingConditions": ["a"], "bindingFailureConditions": ["b"]},
                    "shareID": "0b0e8f3c-5a3d-4c58-9f5c-1c2d3e4f5a6b",
                    "consumedCapacity": {"memory": "1Gi"},
                    "skipNodeOperations": ["*"],
                }
            ],
            "config": [{"source": "FromClass", "requests": ["a"], "opaque": OPAQUE}],
        },
        "nodeSelector": SELECTOR,
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    },
    "reservedFor": [{"apiGroup": "g", "resource": "pods", "name": "p", "uid": "u"}],
    "devices": [
        {
            **{"driver": "d.example.com", "pool": "p", "device": "x", "shareID": "s", "conditions": [CONDITION]},
            "data": {"a": 1, "b": None},
            "networkData": {"interfaceName": "eth0", "ips": ["192.0.2.1/24"], "hardwareAddress": "02:00"},
        }
    ],
}
SLICE_SPEC = {
    "driver": "d.example.com",
    "pool": {"name": "p", "generation": 7, "resourceSliceCount": 2},
    "nodeName": "n",
    "nodeSelector": SELECTOR,
    "allNodes": True,
    "perDeviceNodeSelection": False,
    "partitionTypeAttribute": "a.b/c",
    "skipNodeOperations": ["*"],
    "sharedCounters": [{"name": "s", "counters": {"memory": {"value": "40Gi"}}}],
    "devices": [
        {
            "name": "x",
            "attributes": {
                "a": {"int": 0},
                "b": {"bool": False},
                "c": {"string": ""},
                "d": {"version": "1.2.3"},
                "e": {"ints": []},
                "f": {"bools": [False]},
                "g": {"strings": [""]},
                "h": {"versions": ["1.0.0"]},
            },
            "capacity": {
                "memory": {
                    "value": "40Gi",
                    "requestPolicy": {
                        **{"default": "1Gi", "validValues": ["1Gi", 2]},
                        "validRange": {"min": 0, "max": "2Gi", "step": 0.5},
                    },
                }
            },
            "consumesCounters": [
                {"counterSet": "s", "counters": {"memory": {"value": "1"}}, "compatibilityGroups": ["g"]}
            ],
            "nodeName": "",
            "nodeSelector": SELECTOR,
            "allNodes": False,
            "taints": [{"key": "k", "value": "v", "effect": "None", "timeAdded": "2026-01-01T00:00:00Z"}],
            "bindsToNode": False,
            "bindingConditions": ["a"],
            "bindingFailureConditions": ["b"],
            "allowMultipleAllocations": False,
            "nodeAllocatableResources": {
                "cpu": {
                    "mapping": {"capacityKey": "memory", "capacityMultiplier": "1", "deviceMultiplier": "2"},
                    "overhead": {"perPod": "0", "perContainer": "1"},
                }
            },
        }
    ],
}
FULL: dict[str, dict[str, Any]] = {
    "ResourceClaim": {"spec": CLAIM_SPEC, "status": STATUS},
    "ResourceClaimTemplate": {"spec": {"metadata": {"labels": {"a": "b"}}, "spec": CLAIM_SPEC}},
    "ResourceSlice": {"spec": SLICE_SPEC},
    "DeviceClass": {
        "spec": {
            "selectors": [{"cel": {"expression": "true"}}],
            "config": [{"opaque": OPAQUE}],
            "extendedResourceName": "example.com/gpu",
        }
    },
    "DeviceTaintRule": {
        "spec": {
            "deviceSelector": {"driver": "", "pool": "p", "device": "x"},
            "taint": {"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-01T00:00:00Z"},
        },
        "status": {"conditions": [CONDITION]},
    },
    "ResourcePoolStatusRequest": {
        "spec": {"driver": "d", "poolName": "", "limit": 0, "defaultPartitionTypeAttribute": "a.b/c"},
        "status": {
            "poolCount": 0,
            "conditions": [CONDITION],
            "pools": [
                {
                    **{"driver": "d", "poolName": "p", "generation": 3, "resourceSliceCount": 1, "totalDevices": 0},
                    **{"allocatedDevices": 0, "availableDevices": 0, "unavailableDevices": 0, "nodeName": "n"},
                    "validationError": "e",
                    "partitionSummary": [{"attribute": "a", "type": "t", "total": 0, "allocatable": 0}],
                    "shareableSummary": {
                        **{"fullyAvailableDevices": 0, "partiallyAvailableDevices": 0},
                        "capacity": [{"name": "m", "total": "1", "consumed": "0", "available": "1"}],
                    },
                }
            ],
        },
    },
}


def full(kind: str, version: str = dialect.V1) -> dict[str, Any]:
    """Return an object with a value for every field, many of them zero values that differ from absence."""
    served = dialect.V1ALPHA3 if kind == "ResourcePoolStatusRequest" else version
    return {"apiVersion": served, "kind": kind, "metadata": META, **copy.deepcopy(FULL[kind])}


def kinds(version: str) -> list[str]:
    return [kind.KIND for kind in dialect.SERVES[version]]


@pytest.mark.parametrize("kind", FULL)
def test_every_field_comes_back_as_it_was(kind: str) -> None:
    document = full(kind)
    one = dialect.read(document)
    assert one.ignored == ()
    assert dialect.emit(one.item, document["apiVersion"]) == document


@pytest.mark.parametrize("kind", FULL)
def test_full_objects_set_every_field(kind: str) -> None:
    """Each field of each struct has a value that is not its default: none is forgotten in `FULL`."""
    item = dialect.read(full(kind)).item
    assert sorted(unset(item, kind)) == []


def unset(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, meta.ObjectMeta | core.NodeSelector):
        return
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield from unset(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple) and value and isinstance(value[0], msgspec.Struct):
        merged = [set(unset(one, path)) for one in value]
        yield from set.intersection(*merged)
    elif isinstance(value, dict) and value and isinstance(next(iter(value.values())), msgspec.Struct):
        yield from set.intersection(*(set(unset(one, path)) for one in value.values()))
    elif value is None:
        yield path


@pytest.mark.parametrize(
    ("version", "kind"), [(one, kind) for one in (dialect.V1BETA1, dialect.V1BETA2) for kind in kinds(one)]
)
def test_an_older_version_carries_every_field(version: str, kind: str) -> None:
    item = dialect.read(full(kind)).item
    document = json.loads(json.dumps(dialect.emit(item, version)))
    again = dialect.read(document)
    assert document["apiVersion"] == version
    assert (again.item, again.ignored) == (item, ())


def test_v1beta2_differs_in_its_name_alone() -> None:
    for kind in kinds(dialect.V1BETA2):
        emitted = dialect.emit(dialect.read(full(kind)).item, dialect.V1BETA2)
        assert emitted == full(kind, dialect.V1BETA2)


def test_v1beta1_writes_a_device_under_basic() -> None:
    emitted = dialect.emit(dialect.read(full("ResourceSlice")).item, dialect.V1BETA1)
    (device,) = emitted["spec"]["devices"]
    (expected,) = full("ResourceSlice")["spec"]["devices"]
    name = expected.pop("name")
    assert device == {"name": name, "basic": expected}


def test_v1beta1_writes_a_request_flat() -> None:
    emitted = dialect.emit(dialect.read(full("ResourceClaim")).item, dialect.V1BETA1)
    first, second = emitted["spec"]["devices"]["requests"]
    assert first == {"name": "a", **DEVICES, "adminAccess": False}
    assert second == {"name": "b", "firstAvailable": [{"name": "c", **DEVICES}]}


def test_v1beta1_says_absence_by_zero_values() -> None:
    spec = {"nodeName": "", "allNodes": False, "devices": [{"name": "a"}]}
    one = dialect.read({"apiVersion": dialect.V1BETA1, "kind": "ResourceSlice", "spec": spec})
    assert one.item == ResourceSlice(spec=ResourceSliceSpec(devices=(Device(name="a"),)))
    request = {"name": "r", "deviceClassName": "", "firstAvailable": [{"name": "c"}]}
    claim = {"apiVersion": dialect.V1BETA1, "kind": "ResourceClaim", "spec": {"devices": {"requests": [request]}}}
    found = dialect.read(claim).item
    assert isinstance(found, ResourceClaim)
    assert found.spec.devices.requests is not None
    assert found.spec.devices.requests[0].exactly is None


def test_v1_tells_zero_values_from_absence() -> None:
    one = dialect.read({"apiVersion": dialect.V1, "kind": "ResourceSlice", "spec": {"nodeName": "", "allNodes": False}})
    assert one.item == ResourceSlice(spec=ResourceSliceSpec(node_name="", all_nodes=False))


def test_fields_of_another_version_are_listed() -> None:
    requests = [{"name": "r", "exactly": {"deviceClassName": "x"}}]
    claim = {"apiVersion": dialect.V1BETA1, "kind": "ResourceClaim", "spec": {"devices": {"requests": requests}}}
    assert dialect.read(claim).ignored == ("spec.devices.requests[0].exactly",)
    claim["apiVersion"] = dialect.V1
    claim["spec"] = {"devices": {"requests": [{"name": "r", "deviceClassName": "x", "count": 1}]}}
    ignored = dialect.read(claim).ignored
    assert ignored == ("spec.devices.requests[0].deviceClassName", "spec.devices.requests[0].count")
    device = {"name": "a", "attributes": {}, "basic": {"name": "b", "taints": []}}
    item = {"apiVersion": dialect.V1BETA1, "kind": "ResourceSlice", "spec": {"devices": [device]}}
    found = dialect.read(item)
    assert found.ignored == ("spec.devices[0].attributes", "spec.devices[0].basic.name")
    assert found.item == ResourceSlice(spec=ResourceSliceSpec(devices=(Device(name="a"),)))


def test_unknown_fields_are_listed_at_any_depth() -> None:
    document = full("ResourceSlice")
    document["spec"]["devices"][0]["attributes"]["a"]["float"] = 1.5
    document["spec"]["devices"][0]["capacity"]["memory"]["requestPolicy"]["validRange"]["mean"] = 1
    document["spec"]["sharedCounters"][0]["counters"]["memory"]["max"] = 1
    document["spec"]["future"] = {"a": 1}
    assert dialect.read(document).ignored == (
        'spec.sharedCounters[0].counters["memory"].max',
        'spec.devices[0].attributes["a"].float',
        'spec.devices[0].capacity["memory"].requestPolicy.validRange.mean',
        "spec.future",
    )


def test_opaque_parameters_are_not_unknown_fields() -> None:
    assert dialect.read(full("DeviceClass")).ignored == ()


def test_nulls_of_a_server_are_read() -> None:
    text = json.dumps(
        {
            "metadata": {"name": "c", "creationTimestamp": None},
            "spec": {"devices": {"requests": None}},
            "status": {"devices": [{"driver": "d", "pool": "p", "device": "x", "conditions": None}]},
        }
    )
    item = api.object_decoder(ResourceClaim).decode(text)
    assert (item.spec.devices.requests, item.status.devices[0].conditions) == (None, None)
    policy = {"capacity": {"m": {"value": "1", "requestPolicy": {"default": None}}}}
    body = json.dumps({"spec": {"devices": [{"name": "a", **policy}]}})
    assert api.object_decoder(ResourceSlice).decode(body).spec.devices[0].capacity["m"].request_policy is not None


def test_items_of_lists_name_no_kind() -> None:
    one = dialect.read({"metadata": {"name": "a"}}, version=dialect.V1BETA1, kind="DeviceClass")
    assert one.item.metadata.name == "a"


def test_the_newest_version_that_is_served_is_taken() -> None:
    everything = ["apps/v1", dialect.V1BETA1, dialect.V1, dialect.V1BETA2]
    assert dialect.newest(everything, ResourceSlice) == dialect.V1
    assert dialect.newest([dialect.V1BETA1, dialect.V1BETA2], ResourceSlice) == dialect.V1BETA2
    assert dialect.newest([dialect.V1BETA1], ResourceSlice) == dialect.V1BETA1
    rule = dialect.KINDS[4]
    assert rule.KIND == "DeviceTaintRule"
    assert dialect.newest([dialect.V1BETA1], rule) is None
    assert dialect.newest(["apps/v1"], ResourceSlice) is None


def test_a_version_without_the_kind_is_refused() -> None:
    rule = dialect.read(full("DeviceTaintRule")).item
    with pytest.raises(errors.RequestError, match="v1beta1 has no kind DeviceTaintRule") as found:
        dialect.emit(rule, dialect.V1BETA1)
    assert found.value.hint == "versions that have it: resource.k8s.io/v1, resource.k8s.io/v1beta2"
    for version in (dialect.V1BETA1, "resource.k8s.io/v1alpha3", "v1"):
        with pytest.raises(errors.RequestError, match="no kind 'DeviceTaintRule' in version"):
            dialect.read(full("DeviceTaintRule", version))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ({"devices": {}}, "spec.devices: expected a list, got a map"),
        ({"devices": [5]}, r"spec.devices\[0\]: expected a map, got a whole number"),
        ({"devices": [{"basic": []}]}, r"spec.devices\[0\].basic: expected a map"),
        ({"devices": [{"basic": {"attributes": {"a": {"int": "1"}}}}]}, "expected a whole number, got a string"),
        ({"devices": [{"basic": {"attributes": {"a": {"int": 2**63}}}}]}, "<= 9223372036854775807"),
        ({"pool": {"generation": -(2**63) - 1}}, "spec.pool.generation: Expected `int` >= -9223372036854775808"),
        ([], "spec: expected a map, got a list"),
    ],
)
def test_wrong_types_are_refused_by_their_path(spec: Any, problem: str) -> None:
    document = {"apiVersion": dialect.V1BETA1, "kind": "ResourceSlice", "metadata": {"name": "a"}, "spec": spec}
    with pytest.raises(errors.Invalid, match=problem):
        dialect.read(document)


@pytest.mark.parametrize("kind", ["ResourceClaimTemplate", "ResourceClaim", "ResourceSlice", "DeviceClass"])
@pytest.mark.parametrize("spec", [5, {"spec": 5, "devices": 5, "selectors": 5}])
def test_specs_of_another_type_are_refused(kind: str, spec: Any) -> None:
    with pytest.raises(errors.Invalid, match="got a whole number"):
        dialect.read({"apiVersion": dialect.V1BETA1, "kind": kind, "spec": spec})


@pytest.mark.parametrize("document", [None, 5, "x", [], {}, {"apiVersion": [], "kind": {}}, {"apiVersion": "v1"}])
def test_what_is_no_object_is_refused(document: Any) -> None:
    with pytest.raises(errors.RequestError):
        dialect.read(document)


def test_parameters_nested_without_end_are_refused() -> None:
    deep: Any = {}
    for _ in range(5000):
        deep = {"a": deep}
    document = full("DeviceClass")
    document["spec"]["config"][0]["opaque"]["parameters"] = deep
    with pytest.raises(errors.RequestError, match="nested deeper"):
        dialect.read(document)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, st.sampled_from([*dialect.SERVES]), st.sampled_from(sorted(FULL)), st.sampled_from(["spec", "devices"]))
def test_any_document_is_read_or_refused(junk: Any, version: str, kind: str, place: str) -> None:
    document: dict[str, Any] = {"apiVersion": version, "kind": kind}
    document |= {"spec": junk} if place == "spec" else {"spec": {"devices": junk}}
    with contextlib.suppress(errors.RequestError):
        assert kind == dialect.read(document).item.KIND


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=4))
def test_parameters_come_back_as_they_were(parameters: dict[str, Any]) -> None:
    document = full("DeviceClass")
    document["spec"]["config"][0]["opaque"]["parameters"] = parameters
    item: Any = dialect.read(document).item
    assert item.spec.config[0].opaque.parameters == parameters


def test_an_attribute_keeps_its_kind() -> None:
    read = msgspec.json.decode(b'{"int": 0}', type=DeviceAttribute)
    assert read == DeviceAttribute(int_=0)
    assert msgspec.json.encode(read) == b'{"int":0}'


def test_pods_name_their_claims() -> None:
    pod = {
        "spec": {
            "resourceClaims": [
                {"name": "a", "resourceClaimName": "one"},
                {"name": "b", "resourceClaimTemplateName": "two"},
            ],
            "containers": [{"name": "c", "resources": {"claims": [{"name": "a"}, {"name": "b", "request": "gpu"}]}}],
        },
        "status": {
            "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-xyz"}],
            "extendedResourceClaimStatus": {
                "requestMappings": [
                    {"containerName": "c", "resourceName": "nvidia.com/gpu", "requestName": "container-0-request-0"}
                ],
                "resourceClaimName": "p-extended",
            },
        },
    }
    read = msgspec.convert(pod, core.Pod)
    assert json.loads(msgspec.json.encode(read)) == pod
