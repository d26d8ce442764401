"""Each defect of the reference allocator that was reproduced has a test that ours does not have it."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from fairlead.plan.claim.gate import DEFAULTS
from fairlead.plan.claim.pool import held
from fairlead.plan.claim.pool.candidate import CounterID, DeviceID, billionths
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult, ResourceClaim
from fairlead.wire.kubernetes.resource.resourceslice import ResourceSlice
from tests.unit.plan.claim import claimworld as world

X = f"{world.DRIVER}/x"
ADMIN: dict[str, Any] = {"adminAccess": True}
NODE_2 = {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-2"]}]}]}


def has(device: str, *, pool: str = "pool", driver: str = world.DRIVER, share: str | None = None) -> held.Held:
    result = DeviceRequestAllocationResult(driver=driver, pool=pool, device=device, share_id=share)
    return held.NOTHING.plus("another", [result])


def gpus(*values: object) -> list[ResourceSlice]:
    return [world.published([world.device(f"d{at}", attributes={"x": value}) for at, value in enumerate(values)])]


def test_a_distinct_attribute_counts_within_one_request() -> None:
    claim = world.claim(world.request(count=3), constraints=[{"distinctAttribute": X}])
    assert world.refused(world.run(claim, gpus("a", "b", "a"))).reason == "TooFew"
    assert world.names(world.run(claim, gpus("a", "b", "a", "c"))) == ["d0", "d1", "d3"]


def test_a_partition_that_is_tainted_or_against_a_constraint_takes_no_counters() -> None:
    taint = [{"key": "bad", "effect": "NoSchedule"}]
    for first in ({"taints": taint}, {"attributes": {"y": 1}}):
        slices = [
            world.counters({"set": {"memory": 10}}),
            world.published(
                [
                    world.counted("d0", {"memory": 10}, **first),
                    world.counted("d1", {"memory": 10}, attributes={"x": 1}),
                ],
                count=2,
            ),
        ]
        claim = world.claim(world.request(), constraints=[{"matchAttribute": X}])
        assert world.names(world.run(claim, slices)) == ["d1"]


def test_pools_of_one_name_have_their_own_counters() -> None:
    slices = [
        item
        for driver, memory in (("a.example.com", 10), ("b.example.com", 20))
        for item in (
            world.counters({"set": {"memory": memory}}, driver=driver, name=f"{driver}-counters", pool_name="node-1"),
            world.published(
                [world.counted(f"{driver[0]}{at}", {"memory": 10}) for at in range(2)],
                driver=driver,
                name=driver,
                pool_name="node-1",
                count=2,
            ),
        )
    ]
    assert world.names(world.run(world.claim(world.request(count=3)), slices)) == ["a0", "b0", "b1"]
    assert world.refused(world.run(world.claim(world.request(count=4)), slices)).reason == "TooFewTogether"


def test_values_in_common_come_back_when_a_device_is_taken_back() -> None:
    gates = dataclasses.replace(DEFAULTS, list_type_attributes=True)
    slices = gpus(["a", "b"], ["b"], ["a"], ["a"])
    claim = world.claim(world.request(count=3), constraints=[{"matchAttribute": X}])
    assert world.names(world.run(claim, slices, gates=gates)) == ["d0", "d2", "d3"]


def test_admin_access_sees_a_partition_whose_counters_are_taken() -> None:
    slices = [
        world.counters({"set": {"memory": 10}}),
        world.published([world.counted("d0", {"memory": 10}), world.counted("d1", {"memory": 10})], count=2),
    ]
    claim = world.claim(world.request(**ADMIN))
    assert world.names(world.run(claim, slices, having=has("d0"))) == ["d0"]
    both = world.claim(world.request("watch", **ADMIN), world.request("use"))
    assert world.names(world.run(both, slices)) == ["d0", "d1"]


def test_counters_of_a_held_device_that_is_gone_are_not_given_away() -> None:
    slices = [world.counters({"set": {"memory": 10}}), world.published([world.counted("d1", {"memory": 4})], count=2)]
    claim = world.claim(world.request())
    found = world.refused(world.run(claim, slices, having=has("d0")))
    assert "pool/d0 is held, and no slice says any more what it takes" in found.message
    counter = CounterID(world.DRIVER, "pool", "set", "memory")
    gone = (counter._replace(counter="gone"), 1)
    for taken, fits in ((6, True), (7, False)):
        known = has("d0").remember(DeviceID(world.DRIVER, "pool", "d0"), [(counter, billionths(taken)), gone])
        answer = world.run(claim, slices, having=known)
        assert (world.names(answer) == ["d1"]) if fits else "short by 1" in world.refused(answer).message


def test_a_held_device_of_another_node_s_slice_is_not_gone() -> None:
    # Two nodes publish one pool: each has all the slices that its own say there are.
    slices = [
        world.counters({"set": {"memory": 10}}),
        world.published([world.counted("d0", {"memory": 10})], count=2),
        world.published([world.device("d1")], name="other", nodeSelector=NODE_2),
    ]
    assert world.names(world.run(world.claim(world.request()), slices, having=has("d1"))) == ["d0"]
    assert world.refused(world.run(world.claim(world.request()), slices, having=has("d2"))).reason == "TooFew"


def test_a_device_takes_no_counters_of_its_namesake_on_another_node() -> None:
    slices = [
        world.counters({"set": {"memory": 10}}, count=3),
        world.published([world.counted("d0", {"memory": 6}), world.counted("d1", {"memory": 4})], count=3),
        world.published([world.counted("d0", {"memory": 6})], name="other", nodeSelector=NODE_2, count=3),
    ]
    assert world.names(world.run(world.claim(world.request(count=2)), slices)) == ["d0", "d1"]


def test_the_sum_of_counts_does_not_overflow() -> None:
    for counts in ((2**63 - 1,), (1, 2**63 - 1), (2**63 - 1, 2**63 - 1)):
        claim = world.claim(*(world.request(f"r{at}", count=count) for at, count in enumerate(counts)))
        found = world.refused(world.run(claim, gpus("a")))
        assert (found.reason, found.is_fatal) == ("TooMany", True)
        assert f"adding {2**63 - 1} devices exceeds the claim limit of 32" in found.message


def test_a_class_whose_selector_is_no_cel_is_an_error() -> None:
    item = world.read("DeviceClass", {"metadata": {"name": "any"}, "spec": {"selectors": [{}]}})
    found = world.refused(world.run(world.claim(world.request()), gpus("a"), classes={"any": item}))
    assert found.message == "class any, selector #0: CEL expression empty (unsupported selector type?)"
    assert found.is_fatal


def test_a_share_that_is_known_by_its_id_alone_has_its_counters_already() -> None:
    slices = [
        world.counters({"set": {"memory": 10}}),
        world.published([world.counted("d0", {"memory": 10}, allowMultipleAllocations=True)], count=2),
    ]
    assert world.names(world.run(world.claim(world.request()), slices, having=has("d0", share="share"))) == ["d0"]


def test_what_cannot_be_had_is_refused_at_once() -> None:
    match, distinct = [{"matchAttribute": X}], [{"distinctAttribute": X}]
    same, serial = gpus(*["a"] * 26), gpus(*(f"serial-{at}" for at in range(20)))
    pair = (world.request("a", count=12), world.request("b", count=12))
    cases: list[tuple[ResourceClaim | list[ResourceClaim], list[ResourceSlice]]] = [
        (world.claim(world.request(count=27)), same),
        (world.claim(world.request(count=21)), serial),
        (world.claim(*pair), serial),
        ([world.claim(pair[0], name="one"), world.claim(pair[1], name="two")], serial),
        (world.claim(*pair, constraints=distinct), serial),
        (world.claim(world.request(count=16), constraints=match), gpus(*(at % 4 for at in range(32)))),
        (world.claim(*pair, constraints=match), gpus(*(at % 2 for at in range(32)))),
    ]
    start = time.perf_counter()
    for claims, slices in cases:
        found = world.refused(world.run(claims, slices))
        assert found.reason in {"TooFew", "TooFewTogether"}
        assert found.steps < 1_000
    assert time.perf_counter() - start < 1


def test_a_device_that_was_shared_is_not_given_away_while_a_share_is_held() -> None:
    """The reference gives it away where nothing is known of the capacity that the share has."""
    found = world.refused(world.run(world.claim(world.request()), gpus("a"), having=has("d0", share="share")))
    assert "shared by claim another, from when it could be shared" in found.message


def failing(value: int) -> dict[str, Any]:
    return {"cel": {"expression": f'device.attributes["{world.DRIVER}"].y == {value}'}}


def test_a_failing_selector_of_an_alternative_is_an_error_though_its_count_is_out_of_reach() -> None:
    listed = [
        {"name": "many", "deviceClassName": "any", "count": 2},
        {"name": "failing", "deviceClassName": "any", "count": 2, "selectors": [failing(1)]},
        {"name": "one", "deviceClassName": "any"},
    ]
    found = world.refused(world.run(world.claim({"name": "gpu", "firstAvailable": listed}), gpus(1)))
    assert (found.reason, found.is_fatal) == ("SelectorFailed", True)


def test_a_selector_that_would_fail_on_a_device_that_is_taken_is_no_error() -> None:
    claim = world.claim(world.request("first"), world.request("second", selectors=[failing(1)]))
    found = world.refused(world.run(claim, gpus(1)))
    assert (found.reason, found.is_fatal) != ("SelectorFailed", True)


def test_held_devices_whose_groups_contradict_each_other_count_in_the_slices_order() -> None:
    gates = dataclasses.replace(DEFAULTS, device_compatibility_groups=True)

    def taking(name: str, *groups: str) -> dict[str, Any]:
        return {
            "name": name,
            "consumesCounters": [
                {
                    "counterSet": "set",
                    "counters": {"memory": {"value": "1"}},
                    **({"compatibilityGroups": list(groups)} if groups else {}),
                }
            ],
        }

    for first, second, expected in ((("g",), (), ["d2"]), ((), ("g",), ["d3"])):
        slices = [
            world.counters({"set": {"memory": 10}}),
            world.published([taking("d0", *first), taking("d1", *second), taking("d2", "g"), taking("d3")], count=2),
        ]
        having = has("d0").plus("b", [DeviceRequestAllocationResult(driver=world.DRIVER, pool="pool", device="d1")])
        assert world.names(world.run(world.claim(world.request()), slices, having=having, gates=gates)) == expected


def test_a_default_amount_is_the_default_in_any_notation() -> None:
    # The reference compares the two as they are written, and then refuses an amount that is more than the range has.
    policy = {"default": "1Ki", "validRange": {"min": "500m", "max": "8", "step": "250m"}}
    shared = world.device(
        "d0", allowMultipleAllocations=True, capacity={"n": {"value": "4Ki", "requestPolicy": policy}}
    )
    for asked in ("1Ki", "1024"):
        claim = world.claim(world.request(capacity={"requests": {"n": asked}}))
        assert world.names(world.run(claim, [world.published([shared])])) == ["d0"]


def test_a_refusal_that_is_seen_before_an_error_is_no_error() -> None:
    # The reference tries the first claim's alternatives until it comes to the second claim, whose selector fails.
    listed = [{"name": f"s{count}", "deviceClassName": "any", "count": count} for count in (4, 1)]
    claims = [
        world.claim({"name": "gpu", "firstAvailable": listed}),
        world.claim(world.request("failing", selectors=[failing(1)]), world.request("many", count=4), name="other"),
    ]
    found = world.refused(world.run(claims, gpus(1, 1, 1)))
    assert (found.reason, found.is_fatal) == ("TooFew", False)
