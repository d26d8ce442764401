"""Our allocator beside the reference's own, in random worlds: the same devices and the same status, or a known reason.

Runs where the peer has been built (`python -m benchmarks dra` builds it). Two differences are meant: admin access sees
partitions whose counters are taken (defect E), and where the reference comes to an error of an expression, or of a
constraint that keeps `All` from a device, ours may have seen before that there is no answer.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from benchmarks import drareference
from fairlead.plan.claim import allocate, default
from fairlead.plan.claim.gate import DEFAULTS
from fairlead.plan.claim.pool import held, pool
from fairlead.plan.claim.refusal import Allocation, Refusal
from fairlead.wire.kubernetes import quantity
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult
from tests.unit.plan.claim import claimworld, randomworld, wideworld

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not drareference.PROGRAM.exists(), reason="the reference is not built here"),
]
BATCH = 5_000
MET_LATER = ("a claim constraint would not be satisfied", ": CEL runtime error: ", ": CEL compile error: ", "derived ")
"""Errors that the reference comes to where ours may have seen before that there is no answer."""


def ours(world: dict[str, Any]) -> Allocation | Refusal:
    gates = dataclasses.replace(
        DEFAULTS,
        list_type_attributes=world["lists"],
        derived_attributes=world.get("derived", False),
        device_compatibility_groups=world.get("groups", False),
        fractional_capacity_range=world.get("ranges", False),
    )
    slices = [claimworld.read("ResourceSlice", one) for one in world["slices"]]
    having = held.NOTHING
    for number, one in enumerate(world["held"]):
        name = {key: one[key] for key in ("driver", "pool", "device")}
        share = {"share_id": one.get("shareID"), "consumed_capacity": one.get("consumed") or {}}
        having = having.plus(f"holder-{number}", [DeviceRequestAllocationResult(**name, **share)])
    return allocate.allocate(
        [default.claim(claimworld.read("ResourceClaim", one)) for one in world["claims"]],
        {one["metadata"]["name"]: claimworld.read("DeviceClass", one) for one in world["classes"]},
        pool.Pools(slices, gates).on(pool.Site(name="node-1", labels={"zone": "a"})),
        having,
        matches=claimworld.matches,
        gates=gates,
    )


def normal(value: Any) -> Any:
    """Write quantities in one way, and every id of a share as one."""
    if isinstance(value, list):
        return [normal(one) for one in value]
    if not isinstance(value, dict):
        return value
    found = {key: normal(one) for key, one in value.items() if one not in ({}, [], None)}
    if "shareID" in found:
        found["shareID"] = "share"
    if "consumedCapacity" in found:
        found["consumedCapacity"] = {name: quantity.canonical(one) for name, one in found["consumedCapacity"].items()}
    return found


def verdict(world: dict[str, Any], theirs: dict[str, Any]) -> str:
    """Return how one world came out."""
    found = ours(world)
    if theirs["timeout"]:
        return "too slow for the reference"
    if isinstance(found, Allocation):
        same = normal(json.loads(msgspec.json.encode(found.results))) == normal(theirs["results"] or [])
    else:
        is_error = found.is_fatal or found.reason == "PoolInvalid"
        same = not theirs["results"] and bool(theirs["error"]) == is_error
    if same:
        return "allocated" if isinstance(found, Allocation) else "refused"
    text = json.dumps(world)
    if "adminAccess" in text and "consumesCounters" in text:
        return "defect E"
    if isinstance(found, Refusal) and not found.is_fatal and any(one in theirs["error"] for one in MET_LATER):
        return "refused before the error"
    return f"different: {found}"


def narrow(seed: int) -> dict[str, Any]:
    return randomworld.make(random.Random(seed), lists=seed % 4 == 0, hard=seed % 3 == 0)


def wide(seed: int) -> dict[str, Any]:
    return wideworld.make(random.Random(seed), lists=seed % 4 == 0, hard=seed % 3 == 0)


def derived(seed: int) -> dict[str, Any]:
    return wideworld.make(random.Random(seed), lists=seed % 4 == 0, hard=seed % 3 == 0, derived=True)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("make", "count"), [(narrow, 100_000), (wide, 50_000), (derived, 20_000)])
def test_the_reference_gives_the_same_devices(make: Callable[[int], dict[str, Any]], count: int) -> None:
    outcomes: collections.Counter[str] = collections.Counter()
    for start in range(0, count, BATCH):
        worlds = [make(seed) for seed in range(start, start + BATCH)]
        answers = drareference.answers(drareference.PROGRAM, worlds)
        found = [verdict(one, theirs) for one, theirs in zip(worlds, answers, strict=True)]
        different = [(start + at, one) for at, one in enumerate(found) if one.startswith("different")]
        assert not different, different[:3]
        outcomes.update(found)
    assert outcomes["allocated"] > count / 20
    assert outcomes["refused"] > count / 2
    assert outcomes["defect E"] + outcomes["refused before the error"] < count / 100
