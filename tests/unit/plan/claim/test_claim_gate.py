from __future__ import annotations

from typing import Any

import pytest

from fairlead.plan.claim import gate
from fairlead.wire.kubernetes.resource import dialect
from tests.unit.plan.claim.validate import judged

OFF = gate.Gates(partitionable_devices=False, consumable_capacity=False, device_binding_conditions=False)
ON = gate.Gates(
    fractional_capacity_range=True,
    list_type_attributes=True,
    node_allocatable_resources=True,
    optional_node_operations=True,
    derived_attributes=True,
    device_compatibility_groups=True,
    partitionable_devices_type=True,
)
SLICE = judged.changed(
    judged.SLICE,
    {
        "spec.skipNodeOperations": ["*"],
        "spec.partitionTypeAttribute": "gpu.example.com/model",
        "spec.devices.0.attributes.sizes": {"ints": [1]},
        "spec.devices.0.nodeAllocatableResources": {"cpu": {"overhead": {"perPod": "1"}}},
        "spec.devices.0.consumesCounters.0.compatibilityGroups": ["a"],
    },
)
CLAIM = judged.changed(
    judged.CLAIM, {"spec.devices.requests.0.exactly.derivedAttributes": [{"name": "a.b/c", "expression": "1"}]}
)


def read(document: dict[str, Any]) -> Any:
    return dialect.read(document).item


def test_nothing_is_dropped_where_everything_is_on() -> None:
    claim, allocated, sliced = read(CLAIM), read(judged.ALLOCATED), read(SLICE)
    assert gate.claim_spec(claim.spec, ON) == (claim.spec, ())
    assert gate.claim_status(allocated, ON) == (allocated, ())
    assert gate.resource_slice(sliced, ON) == (sliced, ())


def test_the_defaults_drop_what_is_alpha() -> None:
    _, dropped = gate.resource_slice(read(SLICE), gate.DEFAULTS)
    assert sorted(dropped) == [
        "spec.devices[0].attributes[sizes].ints",
        "spec.devices[0].consumesCounters[0].compatibilityGroups",
        "spec.devices[0].nodeAllocatableResources",
        "spec.partitionTypeAttribute",
        "spec.skipNodeOperations",
    ]
    _, dropped = gate.claim_spec(read(CLAIM).spec, gate.DEFAULTS)
    assert dropped == ("spec.devices.requests[0].exactly.derivedAttributes",)


def test_a_slice_loses_the_fields_of_features_that_are_off() -> None:
    item, dropped = gate.resource_slice(read(judged.SLICE), OFF)
    assert sorted(dropped) == [
        "spec.devices[0].allowMultipleAllocations",
        "spec.devices[0].bindingConditions",
        "spec.devices[0].bindingFailureConditions",
        "spec.devices[0].bindsToNode",
        "spec.devices[0].capacity[cores].requestPolicy",
        "spec.devices[0].capacity[memory].requestPolicy",
        "spec.devices[0].consumesCounters",
    ]
    device = item.spec.devices[0]
    assert (device.consumes_counters, device.allow_multiple_allocations) == ((), None)
    assert {one.request_policy for one in device.capacity.values()} == {None}
    assert device.taints == read(judged.SLICE).spec.devices[0].taints


def test_places_of_devices_go_with_counters() -> None:
    item, dropped = gate.resource_slice(read(judged.PLACED), OFF)
    assert sorted(dropped) == [
        "spec.devices[0].nodeName",
        "spec.devices[1].nodeSelector",
        "spec.devices[2].allNodes",
        "spec.perDeviceNodeSelection",
    ]
    assert item.spec.per_device_node_selection is None
    _, dropped = gate.resource_slice(read(judged.COUNTERS), OFF)
    assert dropped == ("spec.sharedCounters",)


def test_a_claim_loses_capacity_and_distinct_attributes() -> None:
    spec, dropped = gate.claim_spec(read(judged.CLAIM).spec, OFF, "spec.spec")
    assert sorted(dropped) == [
        "spec.spec.devices.constraints[1].distinctAttribute",
        "spec.spec.devices.requests[0].exactly.capacity",
    ]
    assert spec.devices.requests is not None
    assert spec.devices.requests[0].exactly is not None
    assert spec.devices.requests[0].exactly.capacity is None


def test_a_status_loses_what_its_features_made() -> None:
    document = judged.changed(judged.ALLOCATED, {"status.devices.0.shareID": "x"})
    _, dropped = gate.claim_status(read(document), OFF)
    assert sorted(dropped) == [
        "status.allocation.devices.results[0].bindingConditions",
        "status.allocation.devices.results[0].bindingFailureConditions",
        "status.allocation.devices.results[0].consumedCapacity",
        "status.allocation.devices.results[0].shareID",
        "status.devices[0].shareID",
    ]


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"spec.devices.0.consumesCounters": judged.DEVICE["consumesCounters"]}, "consumes_counters"),
        ({"spec.devices.0.bindsToNode": True}, "binding_conditions"),
        ({"spec.devices.0.allowMultipleAllocations": False}, "allow_multiple_allocations"),
    ],
)
def test_a_feature_that_the_stored_slice_uses_stays(changes: dict[str, Any], kept: str) -> None:
    bare = judged.changed(judged.SLICE, {"spec.devices": [{"name": "gpu-0"}]})
    new = read(judged.SLICE)
    dropped_without, _ = gate.resource_slice(new, OFF, old=read(bare))
    kept_with, _ = gate.resource_slice(new, OFF, old=read(judged.changed(bare, changes)))
    of_new = getattr(new.spec.devices[0], kept)
    assert getattr(kept_with.spec.devices[0], kept) == of_new
    assert getattr(dropped_without.spec.devices[0], kept) != of_new


def test_a_feature_that_the_stored_claim_uses_stays() -> None:
    spec = read(judged.CLAIM).spec
    assert gate.claim_spec(spec, OFF, old=spec) == (spec, ())
    allocated = read(judged.ALLOCATED)
    assert gate.claim_status(allocated, OFF, old=allocated) == (allocated, ())


def test_a_question_loses_its_partition_type() -> None:
    document = judged.changed(judged.QUESTION, {"spec.defaultPartitionTypeAttribute": "a.b/c"})
    item = read(document)
    stripped, dropped = gate.pool_status_request(item, gate.DEFAULTS)
    assert dropped == ("spec.defaultPartitionTypeAttribute",)
    assert stripped == read(judged.QUESTION)
    assert gate.pool_status_request(item, gate.DEFAULTS, old=item) == (item, ())
