"""What a request consumes of a shared device: rounded by the policy, refused by it, or an error of the pod."""

from __future__ import annotations

from typing import Any

import pytest

from fairlead.plan.claim.search import capacity
from fairlead.wire.kubernetes.resource.device import (
    CapacityRequestPolicy,
    CapacityRequestPolicyRange,
    DeviceCapacity,
)
from tests.unit.plan.claim import claimworld as world


def consumed(asked: Any, value: Any, policy: CapacityRequestPolicy | None = None, *, fractions: bool = False) -> str:
    """Return what is consumed, or why the device does not do."""
    requests = {} if asked is None else {"m": asked}
    found = capacity.consumption(
        requests, {"m": DeviceCapacity(value=value, request_policy=policy)}, fractions=fractions
    )
    return found if isinstance(found, str) else found.texts["m"]


def within(low: Any, high: Any = None, step: Any = None, default: Any = None) -> CapacityRequestPolicy:
    return CapacityRequestPolicy(default=default, valid_range=CapacityRequestPolicyRange(min=low, max=high, step=step))


VALUES = CapacityRequestPolicy(default="1Gi", valid_values=("1Gi", "2Gi", "4Gi"))


@pytest.mark.parametrize(
    ("asked", "value", "policy", "answer"),
    [
        (None, "10Gi", None, "10Gi"),
        ("3Gi", "10Gi", None, "3Gi"),
        ("12Gi", "10Gi", None, "capacity m is short by 2Gi"),
        (None, "10Gi", VALUES, "1Gi"),
        (None, "10Gi", within("2Gi"), "10Gi"),
        ("1500Mi", "10Gi", VALUES, "2Gi"),
        ("5Gi", "10Gi", VALUES, "capacity m is not given out in amounts of 5Gi: valid values are 1Gi, 2Gi, 4Gi"),
        ("1", "10", within("2", "8", "3"), "2"),
        ("3", "10", within("2", "8", "3"), "5"),
        ("5", "10", within("2", "8", "3"), "5"),
        ("9", "10", within("2", "8", "3"), "capacity m is not given out in amounts of 11: at most 8"),
        ("3", "10", within("2", "8"), "3"),
        ("9", "10", within("2", "8"), "capacity m is not given out in amounts of 9: at most 8"),
        ("7", "10", within(None, "8", "3"), "capacity m is not given out in amounts of 7: steps of 3 from 0"),
        ("5", "10", within("2", "8", "0"), "capacity m is not given out in amounts of 5: steps of 0 from 2"),
        (None, "10", within("2", "8", "3", default="4"), "4"),
        ("3", "10", CapacityRequestPolicy(default="1"), "3"),
        ("1", "x", None, "a capacity of it is no quantity: "),
    ],
)
def test_a_request_is_rounded_by_the_policy_or_refused(
    asked: Any, value: Any, policy: CapacityRequestPolicy | None, answer: str
) -> None:
    assert consumed(asked, value, policy).startswith(answer)


def test_a_range_of_less_than_one_counts_in_whole_numbers_unless_the_gate_is_on() -> None:
    policy = within("500m", "4", "250m")
    assert consumed("600m", "10", policy) == "1"
    assert consumed("600m", "10", policy, fractions=True) == "750m"
    assert consumed("1750m", "10", policy, fractions=True) == "1750m"
    assert consumed("600u", "10", within("100u", "4", "100u"), fractions=True) == "1"


@pytest.mark.parametrize(
    ("asked", "value", "policy", "fractions", "words"),
    [
        ("-1", "10", None, False, "capacity value is negative"),
        (None, "-1", None, False, "capacity value is negative"),
        ("x", "10", None, False, "quantities must match"),
        (str(2**63 - 1), "10", within("2", None, "4"), False, "passes the largest value"),
        ("600u", "10", within("0", "4", "250m"), True, "is not a representable milli value"),
    ],
)
def test_an_amount_that_cannot_be_said_is_an_error(
    asked: Any, value: Any, policy: CapacityRequestPolicy | None, fractions: bool, words: str
) -> None:
    with pytest.raises(capacity.CapacityError, match=words):
        consumed(asked, value, policy, fractions=fractions)


def test_such_an_amount_ends_the_pod() -> None:
    devices = [world.device("d0", allowMultipleAllocations=True, capacity={"m": {"value": "4"}})]
    claim = world.claim(world.request(capacity={"requests": {"m": "-1"}}))
    found = world.refused(world.run(claim, [world.published(devices)]))
    assert found.is_fatal
    assert found.message == (
        f'claim claim, request gpu: checking capacity for device {world.DRIVER}/pool/d0: capacity "m":'
        " capacity value is negative"
    )
    judged = found.verdicts[0]
    assert (judged.test, judged.text) == ("error", found.message)


def test_a_device_that_is_not_shared_only_has_to_have_the_capacity() -> None:
    devices = [world.device(f"d{at}", capacity={"m": {"value": str(at)}}) for at in range(1, 5)]
    claim = world.claim(world.request(count=2, capacity={"requests": {"m": "3"}}))
    found = world.run(claim, [world.published(devices)])
    assert world.names(found) == ["d3", "d4"]


def test_requests_of_one_pod_share_a_device_until_it_is_full() -> None:
    shared: dict[str, Any] = {"allowMultipleAllocations": True, "capacity": {"m": {"value": "5"}}}
    slices = [world.published([world.device("d0", **shared), world.device("d1", **shared)])]
    amount = {"capacity": {"requests": {"m": "2"}}}
    requests = [world.request(f"r{at}", **amount) for at in range(4)]
    assert world.names(world.run(world.claim(*requests), slices)) == ["d0", "d0", "d1", "d1"]
    found = world.refused(world.run(world.claim(*requests, world.request("last", **amount)), slices))
    assert found.reason == "TooFewTogether"
    assert "2 without the capacity (capacity m is short by 1)" in found.message
