"""Gates, places, taints, binding conditions and the rest of what decides on a device, one behaviour a test."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fairlead.plan.claim.gate import DEFAULTS
from fairlead.plan.claim.pool import held, pool
from fairlead.plan.claim.refusal import Allocation
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult
from tests.unit.plan.claim import claimworld as world

X = f"{world.DRIVER}/x"
COUNTED = [
    world.counters({"set": {"memory": 10}}),
    world.published([world.counted("d0", {"memory": 5})], count=2),
]


@pytest.mark.parametrize(
    ("gate", "device", "words"),
    [
        ("device_binding_conditions", {"bindingConditions": ["ready"]}, "DRADeviceBindingConditions is off"),
        (
            "partitionable_devices",
            {"consumesCounters": [{"counterSet": "set", "counters": {}}]},
            "DRAPartitionableDevices is off",
        ),
    ],
)
def test_a_device_that_needs_a_feature_that_is_off_is_not_given(gate: str, device: dict[str, Any], words: str) -> None:
    gates = dataclasses.replace(DEFAULTS, **{gate: False})
    slices = [world.published([world.device("d0", **device)])]
    found = world.refused(world.run(world.claim(world.request()), slices, gates=gates))
    assert found.verdicts[0].test == "feature"
    assert words in found.message


def test_without_partitions_slices_of_counters_do_not_count() -> None:
    gates = dataclasses.replace(DEFAULTS, partitionable_devices=False)
    assert world.refused(world.run(world.claim(world.request()), COUNTED, gates=gates)).reason == "TooFew"


def test_without_taints_a_taint_does_not_count() -> None:
    slices = [world.published([world.device("d0", taints=[{"key": "bad", "effect": "NoExecute"}])])]
    gates = dataclasses.replace(DEFAULTS, device_taints=False)
    assert world.names(world.run(world.claim(world.request()), slices, gates=gates)) == ["d0"]


@pytest.mark.parametrize(
    ("toleration", "bears"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "bad", "operator": "Exists"}, True),
        ({"key": "bad", "operator": "Equal", "value": "v"}, True),
        ({"key": "bad", "value": "v"}, True),
        ({"key": "bad", "value": "w"}, False),
        ({"key": "good", "operator": "Exists"}, False),
        ({"key": "bad", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "bad", "operator": "Near"}, False),
    ],
)
def test_a_toleration_bears_a_taint(toleration: dict[str, str], bears: bool) -> None:
    taint = {"key": "bad", "value": "v", "effect": "NoExecute"}
    slices = [world.published([world.device("d0", taints=[taint])])]
    found = world.run(world.claim(world.request(tolerations=[toleration])), slices)
    assert isinstance(found, Allocation) is bears


@pytest.mark.parametrize("effect", ["None", "Sometimes"])
def test_an_effect_that_is_not_known_keeps_nobody_off(effect: str) -> None:
    slices = [world.published([world.device("d0", taints=[{"key": "bad", "effect": effect}])])]
    assert world.names(world.run(world.claim(world.request()), slices)) == ["d0"]


def test_pools_with_binding_conditions_come_last() -> None:
    bound = world.device("bound", bindingConditions=["ready"], bindingFailureConditions=["failed"])
    slices = [
        world.published([bound], name="a", pool_name="a"),
        world.published([world.device("free")], name="b", pool_name="b"),
    ]
    found = world.run(world.claim(world.request(count=2)), slices)
    assert world.names(found) == ["free", "bound"]
    assert isinstance(found, Allocation)
    results = found.results[0].devices.results
    assert results[1].binding_conditions == ("ready",)
    assert results[1].binding_failure_conditions == ("failed",)


def selector(*terms: dict[str, str]) -> dict[str, Any]:
    return {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in one.items()]}
            for one in terms
        ]
    }


def test_an_allocation_says_which_nodes_can_use_it() -> None:
    everywhere = world.published([world.device("d0")], allNodes=True)
    zone = world.published([world.device("d0")], nodeSelector=selector({"zone": "a"}))
    twice = world.published([world.device("d0")], nodeSelector=selector({"zone": "a", "rack": "b"}, {"zone": "a"}))
    bound = world.published([world.device("d0", bindsToNode=True)], allNodes=True)
    empty = world.published([world.device("d0")], nodeSelector={"nodeSelectorTerms": []}, allNodes=True)

    def nodes(*slices: Any, count: int = 1) -> Any:
        found = world.run(world.claim(world.request(count=count)), slices)
        assert isinstance(found, Allocation), found.message
        return found.results[0].node_selector

    assert nodes(everywhere) is None
    assert nodes(empty) is None
    (term,) = nodes(zone).node_selector_terms
    assert [(one.key, one.values) for one in term.match_expressions] == [("zone", ("a",))]
    other = world.published([world.device("d1")], name="b", pool_name="b", nodeSelector=selector({"zone": "a"}))
    (term,) = nodes(zone, other, count=2).node_selector_terms
    assert len(term.match_expressions) == 1
    (term,) = nodes(bound).node_selector_terms
    assert [(one.key, one.values) for one in term.match_fields] == [("metadata.name", ("node-1",))]
    found = world.refused(world.run(world.claim(world.request()), [twice]))
    assert (found.reason, found.is_fatal) == ("SliceUnknown", True)
    assert "unsupported ResourceSlice.NodeSelector with 2 terms" in found.message


def test_a_slice_that_says_no_place_is_not_read() -> None:
    slices = [world.published([world.device("d0")], allNodes=False)]
    assert world.refused(world.run(world.claim(world.request()), slices)).message.endswith(
        "wants 1 of 0 devices, and 0 fit"
    )


def test_devices_can_say_themselves_where_they_are() -> None:
    places: list[dict[str, Any]] = [
        {"nodeName": "node-2"},
        {"allNodes": True},
        {"nodeSelector": selector({"zone": "a"})},
    ]
    devices = [world.device(f"d{at}", **one) for at, one in enumerate(places)]
    slices = [world.published(devices, perDeviceNodeSelection=True)]
    assert world.names(world.run(world.claim(world.request(count=2)), slices)) == ["d1", "d2"]
    found = world.refused(world.run(world.claim(world.request(count=3)), slices))
    assert "1 on other nodes (the device is on other nodes)" in found.message


def test_operations_are_left_out_only_where_the_node_can() -> None:
    slices = [world.published([world.device("d0")], skipNodeOperations=["*"])]
    claim = world.claim(world.request())
    gates = dataclasses.replace(DEFAULTS, optional_node_operations=True)
    assert "DRAOptionalNodeOperations is off" in world.refused(world.run(claim, slices)).message
    assert "does not declare DRAOptionalNodeOperations" in world.refused(world.run(claim, slices, gates=gates)).message
    site = pool.site_of(core.Node(), ["DRAOptionalNodeOperations"])
    assert site.features == frozenset({"DRAOptionalNodeOperations"})
    able = dataclasses.replace(world.SITE, features=site.features)
    (one,) = pool.Pools(slices, gates).on(able).candidates
    assert not one.refused


def groups(name: str, *own: str) -> dict[str, Any]:
    found = world.counted(name, {"memory": 1})
    found["consumesCounters"][0]["compatibilityGroups"] = list(own)
    return found


def test_devices_of_one_counter_set_need_a_common_group() -> None:
    gates = dataclasses.replace(DEFAULTS, device_compatibility_groups=True)
    devices = [groups("d0", "a"), groups("d1", "b"), groups("d2"), groups("d3", "a", "b"), groups("d4")]
    slices = [world.counters({"set": {"memory": 10}}), world.published(devices, count=2)]
    claim = world.claim(world.request(count=2))
    assert world.names(world.run(claim, slices, gates=gates)) == ["d0", "d3"]
    assert world.refused(world.run(claim, slices)).message.endswith("that are being updated: gpu.example.com/pool")

    def beside(*names: str) -> Any:
        having = held.NOTHING
        for name in names:
            result = DeviceRequestAllocationResult(driver=world.DRIVER, pool="pool", device=name)
            having = having.plus("another", [result])
        return world.run(world.claim(world.request()), slices, gates=gates, having=having)

    assert world.names(beside("d2")) == ["d4"]
    assert world.names(beside("d0")) == ["d3"]
    assert world.names(beside("d0", "d0")) == ["d3"]
    assert world.refused(beside("d0", "d1")).verdicts[3].test == "group"
    assert world.refused(beside("d2", "d4")).verdicts[0].text == "counter set set has devices without groups alone"


def test_without_the_gate_a_list_is_no_value() -> None:
    slices = [world.published([world.device(f"d{at}", attributes={"x": ["a"]}) for at in range(2)])]
    match, distinct = [{"matchAttribute": X}], [{"distinctAttribute": X}]
    for constraints in (match, distinct):
        assert world.names(world.run(world.claim(world.request(), constraints=constraints), slices)) == ["d0"]
        found = world.refused(world.run(world.claim(world.request(count=2), constraints=constraints), slices))
        assert found.reason == "TooFew"


def test_held_devices_are_read_from_claims() -> None:
    status = {
        "allocation": {
            "devices": {
                "results": [
                    {"request": "r", "driver": "d", "pool": "p", "device": "own"},
                    {"request": "r", "driver": "d", "pool": "p", "device": "seen", "adminAccess": True},
                    {
                        "request": "r",
                        "driver": "d",
                        "pool": "p",
                        "device": "nic",
                        "shareID": "1",
                        "consumedCapacity": {"m": "2"},
                    },
                    {
                        "request": "r",
                        "driver": "d",
                        "pool": "p",
                        "device": "nic",
                        "shareID": "2",
                        "consumedCapacity": {"m": "3"},
                    },
                    {"request": "r", "driver": "d", "pool": "p", "device": "bare", "shareID": "3"},
                ]
            }
        }
    }
    claim = world.read("ResourceClaim", {"metadata": {"name": "c", "namespace": "team"}, "status": status})
    waiting = world.claim(world.request())
    found = held.of_claims([claim, waiting]).pool("d", "p")
    assert found.devices == {"own": "team/c"}
    assert found.shares == {"nic": ("team/c", "team/c"), "bare": ("team/c",)}
    assert found.capacity == {"nic": {"m": 5 * 10**9}}
    assert [name in found for name in ("own", "nic", "seen")] == [True, True, False]
    whole = held.of_claims([claim], shares=False).pool("d", "p")
    assert set(whole.devices) == {"own", "nic", "bare"}
    results = claim.status.allocation.devices.results
    assert held.NOTHING.plus("team/c", results).pool("d", "p").shares == found.shares
    assert held.NOTHING.plus("team/c", results).minus("team/c", results).pool("d", "p").names() == set()
    assert held.NOTHING.minus("nobody", results).pool("d", "p").devices == {}


@pytest.mark.parametrize(
    ("request_", "constraints", "words"),
    [
        ({"name": "gpu"}, [], "missing device class name (unsupported request type?)"),
        (world.request(count=-1), [], "a count of -1 is less than nothing"),
        (world.request(selectors=[{}]), [], "selector #0: CEL expression empty (unsupported selector type?)"),
        (world.request(), [{}], "constraint #0: empty constraint (unsupported constraint type?)"),
        (
            world.request(derivedAttributes=[{"name": "a.b/c", "expression": "1"}]),
            [],
            "cannot handle request with derived attributes, the feature is disabled",
        ),
    ],
)
def test_what_is_not_known_is_an_error_of_the_claim(
    request_: dict[str, Any], constraints: list[dict[str, Any]], words: str
) -> None:
    claim = world.claim(request_, constraints=constraints)
    found = world.refused(world.run(claim, [world.published([world.device("d0")])]))
    assert found.is_fatal
    assert words in found.message
    assert found.verdicts == ()


def test_configuration_of_what_was_chosen_is_written_once_and_names_no_request_where_it_is_for_all() -> None:
    opaque = {"opaque": {"driver": "d", "parameters": {"k": 1}}}
    either = {
        "name": "a",
        "firstAvailable": [{"name": name, "deviceClassName": "any", "count": 1} for name in ("first", "second")],
    }
    config = [{"requests": names, **opaque} for names in (["a/first"], ["a/second"], ["a"], ["b"], ["a", "b"], [])]
    claim = world.claim(either, world.request("b"), config=config)
    classes = {"any": world.device_class("any", config=[opaque])}
    slices = [world.published([world.device("d0"), world.device("d1")])]
    found = world.run(claim, slices, classes=classes)
    assert isinstance(found, Allocation)
    assert [(one.source, one.requests) for one in found.results[0].devices.config] == [
        ("FromClass", ()),
        ("FromClaim", ("a/first",)),
        ("FromClaim", ("a",)),
        ("FromClaim", ("b",)),
        ("FromClaim", ()),
        ("FromClaim", ()),
    ]


def test_a_capacity_that_is_no_quantity_makes_its_device_unfit_and_no_other() -> None:
    devices = [world.device("d0", capacity={"m": {"value": "lots"}}), world.device("d1")]
    assert world.names(world.run(world.claim(world.request()), [world.published(devices)])) == ["d1"]


def test_several_constraints_of_many_values_are_each_bounded_alone() -> None:
    devices = [world.device(f"d{at}", attributes={"x": at % 9, "y": at // 4}) for at in range(36)]
    constraints = [{"matchAttribute": f"{world.DRIVER}/{name}"} for name in "xy"]
    found = world.refused(
        world.run(world.claim(world.request(count=2), constraints=constraints), [world.published(devices)])
    )
    assert found.reason == "TooFewTogether"
    assert "against a constraint" in found.message
    assert found.steps < 2_000
