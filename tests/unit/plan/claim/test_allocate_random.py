"""The allocator is held against brute force, and its ledger against time, in random worlds."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import random
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.plan.claim import allocate, default, expression
from fairlead.plan.claim.gate import DEFAULTS, Gates
from fairlead.plan.claim.pool import held, pool
from fairlead.plan.claim.pool.held import Held
from fairlead.plan.claim.refusal import Allocation, Refusal
from fairlead.plan.claim.search import request
from fairlead.plan.claim.search.fit import Fitting
from fairlead.plan.claim.search.preference import Preferences
from fairlead.plan.claim.search.request import Fatal
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult
from tests.unit.plan.claim import bruteforce, randomworld
from tests.unit.plan.claim import claimworld as world


@dataclasses.dataclass(frozen=True)
class Given:
    """What one random world is made of."""

    document: dict[str, Any]
    gates: Gates
    pools: pool.NodePools
    having: Held

    def read(self) -> dict[str, Any]:
        claims = [default.claim(world.read("ResourceClaim", one)) for one in self.document["claims"]]
        classes = {one["metadata"]["name"]: world.read("DeviceClass", one) for one in self.document["classes"]}
        return {"claims": claims, "classes": classes}

    def answer(self) -> Allocation | Refusal:
        read = self.read()
        return allocate.allocate(
            read["claims"], read["classes"], self.pools, self.having, matches=world.matches, gates=self.gates
        )


def given(seed: int, *, hard: bool = False) -> Given:
    document = randomworld.make(random.Random(seed), lists=seed % 3 == 0, hard=hard)
    return of_document(document, dataclasses.replace(DEFAULTS, list_type_attributes=document["lists"]))


def of_document(document: dict[str, Any], gates: Gates) -> Given:
    slices = [world.read("ResourceSlice", one) for one in document["slices"]]
    having = held.NOTHING
    for number, one in enumerate(document["held"]):
        result = DeviceRequestAllocationResult(
            driver=one["driver"],
            pool=one["pool"],
            device=one["device"],
            share_id=one.get("shareID"),
            consumed_capacity=one.get("consumed") or {},
        )
        having = having.plus(f"holder-{number}", [result])
    return Given(document, gates, pool.Pools(slices, gates).on(pool.Site(name="node-1", labels={"zone": "a"})), having)


def as_given(brute: bruteforce.World, document: dict[str, Any], found: Allocation) -> list[bruteforce.Given]:
    """Return an answer as brute force writes it down."""
    offers = {one.name: one for one in brute.offers}
    wanted = {
        (claim, label): (one["name"], fields)
        for claim, item in enumerate(document["claims"])
        for one in item["spec"]["devices"]["requests"]
        for label, fields in bruteforce.alternatives(one)
    }
    return [
        bruteforce.Given(
            claim,
            wanted[claim, each.request][0],
            each.request,
            wanted[claim, each.request][1],
            offers[each.driver, each.pool, each.device],
        )
        for claim, result in enumerate(found.results)
        for each in result.devices.results
    ]


def compare(seed: int) -> str:
    """Compare one world; returns what came out."""
    one = given(seed)
    found = one.answer()
    brute = bruteforce.World(one.document)
    if isinstance(found, Allocation):
        assert brute.is_valid(as_given(brute, one.document, found)), seed
        return "allocated"
    if found.is_fatal:
        return found.reason
    assert found.reason != "BudgetSpent", seed
    if any(each.invalid for each in one.pools.pools):
        return "PoolInvalid"
    assert next(brute.answers(), None) is None, (seed, found.message)
    return "refused"


def test_an_answer_is_sound_and_there_is_one_where_brute_force_finds_one() -> None:
    outcomes = [compare(seed) for seed in range(600)]
    assert outcomes.count("allocated") > 50
    assert outcomes.count("refused") > 50


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_answer_is_sound_in_many_worlds() -> None:
    for seed in range(10_000, 30_000):
        compare(seed)


def steps(fitting: Fitting, table: request.Table, dice: random.Random) -> Iterator[None]:
    """Walk at random: place devices, and roll back to marks."""
    marks: list[tuple[int, Any, Any]] = []
    for _ in range(120):
        if marks and dice.random() < 0.35:
            at = dice.randrange(len(marks))
            mark, tables, placed = marks[at]
            del marks[at:]
            fitting.ledger.rollback(mark)
            assert fitting.ledger.tables() == tables
            assert fitting.ledger.placed == placed
        marks.append((fitting.ledger.checkpoint(), fitting.ledger.tables(), list(fitting.ledger.placed)))
        before = fitting.ledger.tables()
        if fitting.place(dice.choice(table.rows), dice.choice(fitting.pools.candidates)) is not None:
            assert fitting.ledger.tables() == before
        yield
    fitting.ledger.rollback(0)


def test_undo_restores_every_table() -> None:
    placed = 0
    for seed in range(300):
        one = given(seed, hard=True)
        if not one.pools.candidates:
            continue
        fitting = Fitting(one.pools, one.having, one.gates, world.matches, expression.deriver())
        try:
            table = request.read(**one.read(), gates=one.gates, list_all=lambda _: ())
        except Fatal:
            continue
        for _ in steps(fitting, table, random.Random(seed)):
            placed += bool(fitting.ledger.placed)
        assert not any(fitting.ledger.tables())
        assert not fitting.ledger.placed
    assert placed > 5_000


def cluster() -> list[Any]:
    """Return GPUs with partitions, whole GPUs and devices that are shared."""
    partitions = [
        world.counted(f"gpu-{gpu}-{name}", {"slices": size}, counter_set=f"gpu-{gpu}")
        for gpu in range(3)
        for name, size in (("1g-a", 1), ("1g-b", 1), ("2g", 2), ("3g", 3), ("7g", 7))
    ]
    shared = [
        world.device(f"nic-{at}", allowMultipleAllocations=True, capacity={"bandwidth": {"value": "10"}})
        for at in range(2)
    ]
    return [
        world.counters({f"gpu-{gpu}": {"slices": 7} for gpu in range(3)}, pool_name="mig"),
        world.published(partitions, name="partitions", pool_name="mig", count=2),
        world.published(shared, name="nics", pool_name="nic", driver="nic.example.com"),
    ]


SIZES = {"1g-a": 1, "1g-b": 1, "2g": 2, "3g": 3, "7g": 7}


class Books:
    """Counts what all claims have, straight from their results."""

    def __init__(self) -> None:
        self.count: collections.Counter[str] = collections.Counter()

    def book(self, results: tuple[DeviceRequestAllocationResult, ...], sign: int) -> None:
        for one in results:
            if one.pool == "nic":
                self.count[one.device] += sign * int(one.consumed_capacity["bandwidth"])
                assert 0 <= self.count[one.device] <= 10
                continue
            _, gpu, name = one.device.split("-", 2)
            self.count[one.device] += sign
            self.count[gpu] += sign * SIZES[name]
            assert 0 <= self.count[one.device] <= 1
            assert 0 <= self.count[gpu] <= 7


def churn(count: int, seed: int, preferences: Preferences | None = None) -> int:
    """Allocate and deallocate at random; returns how many allocations were made."""
    dice = random.Random(seed)
    pools = pool.Pools(cluster(), DEFAULTS).on(world.SITE)
    classes = {
        "gpu": world.device_class("gpu", f'device.driver == "{world.DRIVER}"'),
        "nic": world.device_class("nic", 'device.driver == "nic.example.com"'),
    }
    matches = functools.cache(world.matches)
    kinds = [world.claim(world.request(deviceClassName="gpu", count=number)) for number in (1, 2, 3)] + [
        world.claim(world.request(deviceClassName="nic", capacity={"requests": {"bandwidth": str(amount)}}))
        for amount in (1, 4, 10)
    ]
    having, made, ids, books = held.NOTHING, 0, itertools.count(), Books()
    live: dict[str, tuple[DeviceRequestAllocationResult, ...]] = {}
    for step in range(count):
        if live and dice.random() < 0.5:
            name = dice.choice(list(live))
            books.book(live[name], -1)
            having = having.minus(name, live.pop(name))
            continue
        found = allocate.allocate(
            [dice.choice(kinds)],
            classes,
            pools,
            having,
            matches=matches,
            preferences=preferences,
            share_ids=lambda: f"share-{next(ids)}",
        )
        if isinstance(found, Allocation):
            made += 1
            live[f"claim-{step}"] = found.results[0].devices.results
            having = having.plus(f"claim-{step}", live[f"claim-{step}"])
            books.book(live[f"claim-{step}"], 1)
    for name, results in live.items():
        having = having.minus(name, results)
    assert all(not one.names() for one in having.pools.values())
    return made


def test_nothing_is_given_twice_over_many_steps() -> None:
    assert churn(30_000, 1) > 6_000


def test_nothing_is_given_twice_where_the_best_is_chosen() -> None:
    assert churn(4_000, 3, Preferences()) > 800


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_given_twice_over_a_million_steps() -> None:
    assert churn(1_000_000, 2) > 200_000
