"""Slices of foreign drivers and claims of strangers can be anything; none ends or delays the search."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from fairlead.plan.claim import allocate
from fairlead.plan.claim.gate import DEFAULTS
from fairlead.plan.claim.pool import held, pool
from fairlead.plan.claim.pool.candidate import Candidate
from fairlead.plan.claim.refusal import Allocation, Refusal
from fairlead.plan.claim.selector import SelectorError
from tests.unit.plan.claim import claimworld as world


def test_ten_thousand_slices_of_other_nodes_cost_a_node_nothing() -> None:
    others = [
        world.published(
            [world.device("d0")], name=f"s{at}", pool_name=f"node-{at}", nodeName=f"node-{at}", driver="x.example.com"
        )
        for at in range(2, 2_000)
    ] * 5
    start = time.perf_counter()
    pools = pool.Pools([*others, world.published([world.device("d0")])], DEFAULTS)
    indexed = time.perf_counter()
    assert [one.id.device for one in pools.on(world.SITE).candidates] == ["d0"]
    assert time.perf_counter() - indexed < 0.01
    assert indexed - start < 2


def test_a_pool_of_ten_thousand_slices_is_read_once_for_all_nodes() -> None:
    slices = [
        world.published(
            [world.counted(f"d{at}", {"memory": 1})],
            name=f"s{at}",
            count=10_001,
            nodeName=f"node-{at}",
        )
        for at in range(10_000)
    ]
    pools = pool.Pools([world.counters({"set": {"memory": 10}}, count=10_001), *slices], DEFAULTS)
    assert [one.id.device for one in pools.on(world.SITE).candidates] == ["d1"]
    start = time.perf_counter()
    for at in range(100):
        pools.on(pool.Site(name=f"node-{at}", labels={}))
    assert time.perf_counter() - start < 2


def test_a_jump_of_generations_replaces_the_pool() -> None:
    old = world.published([world.device("old")], name="old")
    new = world.published([world.device("new")], name="new", generation=2**63 - 1)
    assert world.names(world.run(world.claim(world.request()), [old, new])) == ["new"]
    partly = world.published([world.device("new")], name="new", generation=9, count=2)
    found = world.refused(world.run(world.claim(world.request()), [old, partly]))
    assert "pools that are being updated: gpu.example.com/pool" in found.message
    elsewhere = world.published([world.device("new")], name="new", generation=9, nodeName="node-2", count=1)
    partial = world.published([world.device("old")], name="old", count=2)
    assert world.refused(world.run(world.claim(world.request()), [partial, elsewhere])).reason == "TooFew"


@pytest.mark.parametrize(
    ("slices", "words"),
    [
        ([world.published([world.device("d0"), world.device("d0")])], "duplicate device name d0"),
        ([world.published([world.counted("d0", {"memory": 1})])], "counter set set not found"),
        (
            [world.counters({"set": {"memory": 1}}), world.published([world.counted("d0", {"cores": 1})], count=2)],
            "counter cores not found in counter set set",
        ),
        (
            [world.counters({"set": {"memory": 1}}), world.published([world.counted("d0", {"memory": -5})], count=2)],
            "device d0 takes less than nothing of counter set/memory",
        ),
        (
            [world.counters({"set": {"memory": "x"}}), world.published([world.device("d0")], count=2)],
            "a counter that is no quantity",
        ),
        (
            [
                world.counters({"set": {"memory": 1}}, count=3),
                world.counters({"set": {"memory": 1}}, count=3, name="again"),
                world.published([world.device("d0")], count=3),
            ],
            "duplicate counter set name set",
        ),
    ],
)
def test_a_pool_that_contradicts_itself_gives_nothing_and_says_why(slices: list[Any], words: str) -> None:
    found = world.refused(world.run(world.claim(world.request()), slices))
    assert (found.reason, found.is_fatal) == ("PoolInvalid", False)
    assert found.message.startswith("invalid resource pools were encountered (gpu.example.com/pool: ")
    assert words in found.message
    good = world.published([world.device("good")], name="good", driver="good.example.com")
    assert world.names(world.run(world.claim(world.request()), [*slices, good])) == ["good"]
    every = world.refused(world.run(world.claim(world.request(allocationMode="All")), [*slices, good]))
    assert "asks for all devices, but resource pool gpu.example.com/pool is currently invalid" in every.message


def test_a_selector_that_fails_ends_the_pod_only_where_it_is_reached() -> None:
    def fails(_: str, one: Candidate) -> bool:
        if one.id.device == "d1":
            message = "no such key: x"
            raise SelectorError(message)
        return True

    slices = [world.published([world.device(f"d{at}") for at in range(3)])]
    assert world.names(world.run(world.claim(world.request()), slices, matches=fails)) == ["d0"]
    found = world.refused(world.run(world.claim(world.request(count=2)), slices, matches=fails))
    assert (
        found.message == "class any: selector #0 on device gpu.example.com/pool/d1: CEL runtime error: no such key: x"
    )
    assert found.is_fatal
    many = world.claim(world.request(count=3), world.request("b", count=3))
    assert world.refused(world.run(many, slices, matches=fails)).is_fatal


def test_what_is_too_hard_ends_with_a_word_of_the_budget() -> None:
    dice = random.Random(5)
    devices = [
        world.counted(f"d{at:02}", {key: dice.randint(20, 40) for key in "abcdef"}, attributes={"x": at})
        for at in range(40)
    ]
    slices = [world.counters({"set": {key: 300 for key in "abcdef"}}), world.published(devices, count=2)]
    start = time.perf_counter()
    found = world.refused(world.run(world.claim(world.request(count=12)), slices, budget=300))
    assert found.reason == "BudgetSpent"
    assert found.message == "the search was given up after 300 steps; what is asked for may or may not be there"
    assert time.perf_counter() - start < 1


def test_requests_of_every_size_end() -> None:
    dice = random.Random(3)
    slices = [world.published([world.device(f"d{at}", attributes={"x": at % 5, "y": at % 3}) for at in range(24)])]
    pools = pool.Pools(slices, DEFAULTS).on(world.SITE)
    for _ in range(150):
        requests = [world.request(f"r{at}", count=dice.randint(1, 12)) for at in range(dice.randint(1, 4))]
        constraints = [
            {dice.choice(("matchAttribute", "distinctAttribute")): f"{world.DRIVER}/{dice.choice('xy')}"}
            for _ in range(dice.randint(0, 2))
        ]
        claims = [world.claim(one, name=f"c{at}", constraints=constraints) for at, one in enumerate(requests)]
        found: Allocation | Refusal = allocate.allocate(
            claims, world.CLASSES, pools, held.NOTHING, matches=lambda *_: True
        )
        assert found.steps < 3_000
        assert isinstance(found, Allocation) or found.reason != "BudgetSpent"


def test_a_later_claim_that_has_no_answer_alone_is_found_before_all_of_the_first_are_tried() -> None:
    devices = [world.device(f"d{at:02}", attributes={"x": at, "y": at % 2}) for at in range(30)]
    first = world.claim(world.request(count=6), constraints=[{"distinctAttribute": f"{world.DRIVER}/x"}], name="first")
    match = {"matchAttribute": f"{world.DRIVER}/y"}
    distinct = {"distinctAttribute": f"{world.DRIVER}/y"}
    second = world.claim(world.request(count=2), constraints=[match, distinct], name="second")
    found = world.refused(world.run([first, second], [world.published(devices)]))
    assert found.reason == "TooFewTogether"
    assert found.steps < 500
    assert "of claim second wants 2 devices and gets 1 beside 6 for requests before it" in found.message


def test_alternatives_that_are_too_many_leave_room_for_those_that_are_not() -> None:
    def either(name: str, *counts: int) -> dict[str, Any]:
        return {
            "name": name,
            "firstAvailable": [
                {"name": f"s{at}", "deviceClassName": "any", "count": count} for at, count in enumerate(counts)
            ],
        }

    slices = [world.published([world.device(f"d{at}") for at in range(64)])]
    found = world.run(world.claim(either("a", 31, 30), either("b", 31, 2)), slices)
    assert isinstance(found, Allocation)
    assert [one.request for one in found.results[0].devices.results] == ["a/s1"] * 30 + ["b/s1"] * 2
    other = world.claim(world.request(count=2), name="other")
    last = world.claim(either("a", 31, 30), either("b", 31, 2), name="last")
    assert isinstance(world.run([other, last], slices), Allocation)
    assert isinstance(world.run([last, other], slices), Allocation)
    few = [world.published([world.device(f"d{at}") for at in range(33)])]
    assert world.refused(world.run([other, last], few)).reason == "TooFewTogether"


def test_a_selector_that_fails_where_the_search_never_comes_ends_nothing() -> None:
    def fails(expression: str, one: Candidate) -> bool:
        if expression == "late" and one.id.device == "d2":
            message = "no such key: x"
            raise SelectorError(message)
        return True

    late = {"selectors": [{"cel": {"expression": "late"}}]}
    requests = [world.request("a"), world.request("b", count=3), world.request("c", **late)]
    slices = [world.published([world.device(f"d{at}") for at in range(3)])]
    found = world.refused(world.run(world.claim(*requests), slices, matches=fails))
    assert (found.reason, found.is_fatal) == ("TooFewTogether", False)
    first = [world.request("c", **late), *requests[:2]]
    assert world.refused(world.run(world.claim(*first), slices, matches=fails)).is_fatal


def test_a_failing_device_of_a_shared_kind_is_counted_as_one_that_may_do() -> None:
    def fails(_: str, one: Candidate) -> bool:
        if one.id.device == "d2":
            message = "no such key: x"
            raise SelectorError(message)
        return True

    shared: dict[str, Any] = {"allowMultipleAllocations": True, "capacity": {"m": {"value": "2"}}}
    slices = [world.published([world.device(f"d{at}", **shared) for at in range(3)])]
    requests = [world.request(f"r{at}", count=2, capacity={"requests": {"m": "1"}}) for at in range(3)]
    found = world.refused(world.run(world.claim(*requests), slices, matches=fails))
    assert found.is_fatal
