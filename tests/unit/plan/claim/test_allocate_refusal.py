"""A refusal says for each device which test refused it, with the value, and sums it up in one line."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.plan.claim.pool import held
from fairlead.plan.claim.refusal import Refusal
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult
from tests.unit.plan.claim import claimworld as world

X = f"{world.DRIVER}/x"


def having(device: str, **fields: Any) -> held.Held:
    result = DeviceRequestAllocationResult(driver=world.DRIVER, pool="pool", device=device, **fields)
    return held.NOTHING.plus("team/training", [result])


def verdict(found: Refusal, device: str) -> tuple[str, str]:
    one = next(one for one in found.verdicts if one.device.device == device)
    return one.test, one.text


SHARED = {"allowMultipleAllocations": True, "capacity": {"memory": {"value": "10Gi"}}}
CASES = [
    ("held", {}, {}, {"having": having("d0")}, "held by claim team/training"),
    (
        "selector",
        {},
        {"selectors": [{"cel": {"expression": 'device.driver == "other"'}}]},
        {},
        'selector #0 of claim claim: device.driver == "other"',
    ),
    (
        "taint",
        {"taints": [{"key": "xid", "value": "79", "effect": "NoExecute"}]},
        {"tolerations": [{"key": "xid", "operator": "Equal", "value": "80"}]},
        {},
        "taint xid=79:NoExecute is not tolerated",
    ),
    (
        "capacity",
        SHARED,
        {"capacity": {"requests": {"memory": "4Gi"}}},
        {"having": having("d0", share_id="s", consumed_capacity={"memory": "7Gi"})},
        "capacity memory is short by 1Gi",
    ),
    ("capacity", SHARED, {"capacity": {"requests": {"memory": "12Gi"}}}, {}, "capacity memory is short by 2Gi"),
    ("capacity", SHARED, {"capacity": {"requests": {"cores": "1"}}}, {}, "it has no capacity cores"),
    (
        "capacity",
        {
            "allowMultipleAllocations": True,
            "capacity": {
                "memory": {"value": "10Gi", "requestPolicy": {"default": "1Gi", "validValues": ["1Gi", "2Gi"]}}
            },
        },
        {"capacity": {"requests": {"memory": "3Gi"}}},
        {},
        "capacity memory is not given out in amounts of 3Gi: valid values are 1Gi, 2Gi",
    ),
]


@pytest.mark.parametrize(("test", "device", "request_", "rest", "words"), CASES)
def test_a_verdict_names_the_test_and_the_value(
    test: str, device: dict[str, Any], request_: dict[str, Any], rest: dict[str, Any], words: str
) -> None:
    found = world.refused(
        world.run(world.claim(world.request(**request_)), [world.published([world.device("d0", **device)])], **rest)
    )
    assert verdict(found, "d0") == (test, words)
    assert (found.reason, found.is_fatal) == ("TooFew", False)
    assert found.message.startswith("request gpu of claim claim wants 1 of 1 devices, and 0 fit: 1 ")
    assert words in found.message


def test_a_counter_is_short_by_so_much() -> None:
    slices = [
        world.counters({"set": {"memory": "10Gi"}}),
        world.published([world.counted("d0", {"memory": "7Gi"}), world.counted("d1", {"memory": "6Gi"})], count=2),
    ]
    found = world.refused(world.run(world.claim(world.request()), slices, having=having("d0")))
    assert verdict(found, "d1") == (
        "counter",
        f"counter set/memory of pool {world.DRIVER}/pool is short by 3Gi",
    )
    pair = world.refused(world.run(world.claim(world.request(count=2)), slices))
    assert pair.reason == "TooFewTogether"
    assert "request gpu of claim claim wants 2 devices and gets 1: 1 taken by this pod" in pair.message
    assert "1 short of a counter (counter set/memory" in pair.message


def test_an_overdrawn_counter_is_named() -> None:
    slices = [
        world.counters({"set": {"memory": "5"}}),
        world.published([world.counted("d0", {"memory": "7"}), world.counted("d1", {"memory": "0"})], count=2),
    ]
    found = world.refused(world.run(world.claim(world.request()), slices, having=having("d0")))
    assert verdict(found, "d1")[1] == f"counter set/memory of pool {world.DRIVER}/pool is overdrawn by 2"


def test_a_constraint_says_how_many_there_are() -> None:
    slices = [world.published([world.device(f"d{at}", attributes={"x": at % 2}) for at in range(5)])]
    match = world.claim(world.request(count=4), constraints=[{"matchAttribute": X}])
    distinct = world.claim(world.request(count=3), constraints=[{"distinctAttribute": X}])
    assert world.refused(world.run(match, slices)).message == (
        f"request gpu of claim claim wants 4 devices with one value of {X}, and there are 3"
    )
    assert world.refused(world.run(distinct, slices)).message == (
        f"request gpu of claim claim wants 3 devices with different values of {X}, and there are 2"
    )
    none = world.claim(world.request(), constraints=[{"matchAttribute": "a.b/c"}])
    assert verdict(world.refused(world.run(none, slices)), "d0") == ("constraint", "it has no attribute a.b/c")


def test_requests_that_only_fail_together_say_where_they_get_stuck() -> None:
    slices = [world.published([world.device(f"d{at}") for at in range(20)])]
    claim = world.claim(world.request("a", count=12), world.request("b", count=12))
    found = world.refused(world.run(claim, slices))
    assert found.reason == "TooFewTogether"
    assert found.message == (
        "request b of claim claim wants 12 devices and gets 8 beside 12 for requests before it: 20 taken by this pod"
        " (this pod has it already)"
    )


def test_alternatives_each_say_why() -> None:
    wanted = {
        "name": "gpu",
        "firstAvailable": [
            {"name": "many", "deviceClassName": "any", "count": 3},
            {
                "name": "other",
                "deviceClassName": "any",
                "selectors": [{"cel": {"expression": 'device.driver == "no"'}}],
            },
        ],
    }
    found = world.refused(world.run(world.claim(wanted), [world.published([world.device("d0")])]))
    assert (
        "request gpu/many of claim claim wants 3 of 1 devices, and 1 fit; request gpu/other of claim claim"
        in found.message
    )
    assert [one.request for one in found.verdicts] == ["gpu/many", "gpu/other"]
    assert str(found.verdicts[0]) == f"{world.DRIVER}/pool/d0: fits"


def test_all_devices_are_refused_by_the_first_that_is_not_free() -> None:
    slices = [world.published([world.device("d0"), world.device("d1")])]
    claim = world.claim(world.request(allocationMode="All"))
    found = world.refused(world.run(claim, slices, having=having("d1")))
    assert found.message == (
        f"request gpu of claim claim wants all 2 devices: {world.DRIVER}/pool/d1: held by claim team/training"
    )
    assert world.refused(world.run(claim, [])).message.endswith("wants all devices, and none is offered")


def test_a_summary_counts_what_it_leaves_out() -> None:
    taints = [[{"key": f"k{at}", "effect": "NoSchedule"}] for at in range(5)]
    slices = [world.published([world.device(f"d{at}", taints=one) for at, one in enumerate(taints)])]
    found = world.refused(world.run(world.claim(world.request()), slices))
    assert "5 tainted (" in found.message
    assert found.message.endswith("; 2 more reasons)")


def test_alternatives_that_only_fit_without_the_limit_of_a_claim_say_so() -> None:
    none = {"selectors": [{"cel": {"expression": 'device.driver == "no"'}}]}
    many = {"name": "many", "deviceClassName": "any", "count": 31}
    other = {"name": "other", "deviceClassName": "any", "count": 1, **none}
    claim = world.claim({"name": "a", "firstAvailable": [many, other]}, world.request("b", count=5))
    found = world.refused(world.run(claim, [world.published([world.device(f"d{at}") for at in range(40)])]))
    assert found.reason == "TooFewTogether"
    assert found.message == (
        "no choice of alternatives meets every request with the 32 devices that a claim can record"
    )
