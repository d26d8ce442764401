"""In the scored mode the best devices are chosen, by brute force too, and some wherever the other mode has some."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest

from fairlead.plan.claim import allocate
from fairlead.plan.claim.gate import DEFAULTS as GATES
from fairlead.plan.claim.pool import held
from fairlead.plan.claim.refusal import Allocation, Refusal
from fairlead.plan.claim.search.preference import POOL, Preferences, Together
from fairlead.wire.kubernetes.resource.device import NUMA_NODE, PCI_BUS_ID, PCIE_ROOT
from fairlead.wire.kubernetes.resource.resourceclaim import DeviceRequestAllocationResult
from tests.unit.plan.claim import bruteforce, wideworld
from tests.unit.plan.claim import claimworld as world
from tests.unit.plan.claim.test_allocate_random import Given, as_given, given, of_document

X, Y = "a.example.com/x", "a.example.com/y"
TABLE = Preferences(
    together=(Together(attribute=X, apart=70, fresh=30), Together(attribute=POOL, apart=50, fresh=20)),
    stray=110,
    beside=Y,
    board=130,
    lost=100,
    steps=1_000_000,
)
MOST_ANSWERS = 2_000
DEFAULTS = Preferences()


class Judge:
    """Sums up what speaks against answers, straight from the documents, by rules written down a second time."""

    def __init__(self, brute: bruteforce.World, document: dict[str, Any]) -> None:
        self._brute, self._offers = brute, brute.offers
        self._held = {(one["driver"], one["pool"], one["device"]) for one in document["held"]}
        self._sets: dict[tuple[str, ...], dict[str, Fraction]] = {
            (item["spec"]["driver"], item["spec"]["pool"]["name"], one["name"]): {
                key: Fraction(counter["value"]) for key, counter in one["counters"].items()
            }
            for slices in self._pools(document).values()
            for item in brute.current(slices)
            for one in item["spec"].get("sharedCounters", ())
        }
        every = [
            ((driver, pool, device["name"]), device)
            for (driver, pool), slices in self._pools(document).items()
            for item in brute.current(slices)
            for device in item["spec"].get("devices", ())
        ]
        self._left: dict[tuple[str, ...], dict[str, Fraction]] = {
            name: {
                key: total
                - sum(
                    needs(device, name).get(key, 0)
                    for other, device in every
                    if other in self._held and other[:2] == name[:2]
                )
                for key, total in counters.items()
            }
            for name, counters in self._sets.items()
        }

    @staticmethod
    def _pools(document: dict[str, Any]) -> dict[tuple[str, str], list[dict[str, Any]]]:
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for item in document["slices"]:
            found.setdefault((item["spec"]["driver"], item["spec"]["pool"]["name"]), []).append(item)
        return found

    def ranks(self, answer: Sequence[bruteforce.Given], document: dict[str, Any]) -> list[int]:
        labels = {(one.claim, one.request): one.label for one in answer}
        return [
            [label for label, _ in bruteforce.alternatives(request)].index(labels[claim, request["name"]])
            for claim, item in enumerate(document["claims"])
            for request in item["spec"]["devices"]["requests"]
        ]

    def penalty(self, answer: Sequence[bruteforce.Given]) -> int:
        offers = [one.offer for one in answer if not one.wanted.get("adminAccess")]
        held_offers = [one for one in self._offers if one.name in self._held]
        total = 0
        for weights, read in ((TABLE.together[0], x_of), (TABLE.together[1], pool_of)):
            values = {(one.driver, value) for one in offers if (value := read(one))}
            before = {(one.driver, read(one)) for one in held_offers}
            total += weights.apart * max(len({value for _, value in values}) - 1, 0)
            total += weights.fresh * len(values - before)
        boards = {board for one in offers for board in boards_of(one)}
        drawn = {name for name, counters in self._sets.items() if self._left[name] != counters}
        total += TABLE.board * len(boards - drawn - {board for one in held_offers for board in boards_of(one)})
        total += TABLE.lost * sum(self._lost(name, offers) for name in boards if name in self._sets) // 1000
        if len({one.driver for one in offers}) > 1:
            total += TABLE.stray * sum(not any(beside(one, other) for other in offers) for one in offers)
        return total

    def _lost(self, name: tuple[str, ...], offers: Sequence[bruteforce.Offer]) -> int:
        left = self._left[name]
        taken = {
            one.name: needs(one.document, name)
            for one in offers
            if one.name not in self._held and one.name[:2] == name[:2]
        }.values()
        lost = 0
        for one in self._offers:
            wants = needs(one.document, name)
            if name not in boards_of(one) or one.name in self._held or any(wants.get(k, 0) > left[k] for k in left):
                continue
            after = {key: have - sum(two.get(key, 0) for two in taken) for key, have in left.items()}
            if any(wants.get(key, 0) > after[key] for key in after):
                shares = [int(1000 * wants.get(k, 0) / total) for k, total in self._sets[name].items() if total]
                lost += sum(shares) // len(shares)
        return lost


def needs(device: dict[str, Any], name: tuple[str, ...]) -> dict[str, Fraction]:
    return {
        key: Fraction(counter["value"])
        for used in device.get("consumesCounters", ())
        if used["counterSet"] == name[2]
        for key, counter in used["counters"].items()
    }


def x_of(offer: bruteforce.Offer) -> Any:
    found = bruteforce.values_of(X, offer)
    return frozenset(found) if found else None


def pool_of(offer: bruteforce.Offer) -> Any:
    return (offer.driver, offer.pool)


def boards_of(offer: bruteforce.Offer) -> set[tuple[str, ...]]:
    sets = {used["counterSet"] for used in offer.document.get("consumesCounters", ())}
    return {(offer.driver, offer.pool, name) for name in sets} or {offer.name}


def beside(one: bruteforce.Offer, other: bruteforce.Offer) -> bool:
    value = bruteforce.values_of(Y, one)
    return one.driver != other.driver and bool(value) and value == bruteforce.values_of(Y, other)


def scored(one: Given, preferences: Preferences | None, **rest: Any) -> Allocation | Refusal:
    read = one.read()
    return allocate.allocate(
        read["claims"],
        read["classes"],
        one.pools,
        one.having,
        matches=world.matches,
        gates=one.gates,
        preferences=preferences,
        **rest,
    )


def compare_scored(seed: int) -> str:
    """Compare one world; returns what came out."""
    one = given(seed, hard=seed % 2 == 0)
    first, found = one.answer(), scored(one, TABLE, budget=10**6)
    assert type(found) is type(first), seed
    if isinstance(first, Refusal) or isinstance(found, Refusal):
        assert isinstance(first, Refusal)
        assert isinstance(found, Refusal)
        assert (first.reason, first.message) == (found.reason, found.message)
        return "refused"
    brute = bruteforce.World(one.document)
    judge, answer = Judge(brute, one.document), as_given(brute, one.document, found)
    assert brute.is_valid(answer), seed
    assert found.penalty == judge.penalty(answer), seed
    every = list(itertools.islice(brute.answers(), MOST_ANSWERS))
    if len(every) == MOST_ANSWERS:
        return "too many"
    assert found.is_best, seed
    ranked = [(judge.ranks(each, one.document), judge.penalty(each)) for each in every]
    assert (judge.ranks(answer, one.document), found.penalty) == min(ranked), seed
    before = as_given(brute, one.document, first)
    is_better = (judge.ranks(before, one.document), judge.penalty(before)) != min(ranked)
    return "better" if is_better else "the first"


def test_the_chosen_devices_are_the_best_by_brute_force() -> None:
    outcomes = [compare_scored(seed) for seed in range(300)]
    assert outcomes.count("better") > 5
    assert outcomes.count("the first") > 15


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_chosen_devices_are_the_best_in_many_worlds() -> None:
    outcomes = [compare_scored(seed) for seed in range(50_000, 60_000)]
    assert outcomes.count("better") > 200


def test_no_budget_makes_the_scored_mode_refuse_or_choose_worse() -> None:
    for seed in range(300):
        one = given(seed, hard=seed % 2 == 0)
        first = one.answer()
        for steps in (0, 1, 7, 40):
            found = scored(one, dataclasses.replace(TABLE, steps=steps))
            again = scored(one, dataclasses.replace(TABLE, steps=steps))
            assert type(found) is type(first), seed
            if isinstance(found, Allocation) and isinstance(again, Allocation):
                assert found.steps <= allocate.BUDGET
                assert names(found) == names(again)


def test_both_modes_allocate_the_same_worlds_whatever_selectors_do() -> None:
    allocated = 0
    for seed in range(600):
        document = wideworld.make(random.Random(seed), lists=seed % 3 == 0, hard=True, derived=seed % 2 == 0)
        gates = dataclasses.replace(
            GATES,
            list_type_attributes=document["lists"],
            derived_attributes=document["derived"],
            device_compatibility_groups=document["groups"],
        )
        one = of_document(document, gates)
        first, found = one.answer(), scored(one, DEFAULTS)
        assert type(found) is type(first), seed
        if isinstance(first, Refusal) and isinstance(found, Refusal):
            assert (found.reason, found.message, found.is_fatal) == (first.reason, first.message, first.is_fatal)
        allocated += isinstance(found, Allocation)
    assert allocated > 60


def names(found: Allocation) -> list[list[str]]:
    return [[one.device for one in each.devices.results] for each in found.results]


def has(*devices: str, driver: str = world.DRIVER, pool: str = "pool", share: str | None = None) -> held.Held:
    results = [DeviceRequestAllocationResult(driver=driver, pool=pool, device=one, share_id=share) for one in devices]
    return held.NOTHING.plus("another", results)


def gpu(name: str, root: int, numa: int, **rest: Any) -> dict[str, Any]:
    return world.device(name, attributes={PCIE_ROOT: f"pci0000:{root:02}", NUMA_NODE: numa}, **rest)


def test_devices_that_hang_together_are_chosen_together() -> None:
    slices = [world.published([gpu(f"d{at}", root=at // 2, numa=at // 4) for at in range(8)])]
    claim = world.claim(world.request(count=4))
    having = has("d1", "d6")
    assert world.names(world.run(claim, slices, having=having)) == ["d0", "d2", "d3", "d4"]
    found = world.run(world.claim(world.request(count=2)), slices, having=having, preferences=DEFAULTS)
    assert world.names(found) == ["d2", "d3"]
    assert world.names(world.run(claim, slices, preferences=DEFAULTS, having=has("d0"))) == ["d4", "d5", "d6", "d7"]


def test_a_domain_that_is_in_use_comes_before_an_untouched_one() -> None:
    slices = [world.published([gpu(f"d{at}", root=at // 2, numa=at // 4) for at in range(8)])]
    found = world.run(world.claim(world.request()), slices, having=has("d6"), preferences=DEFAULTS)
    assert world.names(found) == ["d7"]


def test_a_nic_is_chosen_beside_the_gpu() -> None:
    gpus = world.published([gpu(f"g{at}", root=at, numa=0) for at in range(4)])
    nics = [gpu(f"n{at}", root=at, numa=0) for at in range(4)]
    slices = [gpus, world.published(nics, name="nics", driver="nic.example.com")]
    classes = {
        "any": world.device_class(expression=f'device.driver == "{world.DRIVER}"'),
        "nic": world.device_class("nic", 'device.driver == "nic.example.com"'),
    }
    claim = world.claim(world.request(count=2), world.request("nic", deviceClassName="nic", count=2))
    having = has("g0").plus("b", [DeviceRequestAllocationResult(driver="nic.example.com", pool="pool", device="n1")])
    assert world.names(world.run(claim, slices, classes=classes, having=having)) == ["g1", "g2", "n0", "n2"]
    found = world.run(claim, slices, classes=classes, having=having, preferences=DEFAULTS)
    assert world.names(found) == ["g2", "g3", "n2", "n3"]


PLACES = {
    **{f"1g-{at}": (at,) for at in range(7)},
    **{f"2g-{at}": (at, at + 1) for at in (0, 2, 4)},
    **{f"3g-{at}": tuple(range(at, at + 4)) for at in (0, 4)},
    "7g": tuple(range(8)),
}


def partitioned(gpus: int) -> list[Any]:
    """Return GPUs with partitions at places of a memory of eight slices."""
    devices = [
        world.counted(
            f"{gpu_at}-{name}",
            {f"slice-{at}": 1 for at in places},
            counter_set=f"gpu-{gpu_at}",
            attributes={"profile": name.split("-")[0]},
        )
        for gpu_at in range(gpus)
        for name, places in PLACES.items()
    ]
    sets = {f"gpu-{at}": {f"slice-{one}": 1 for one in range(8)} for at in range(gpus)}
    return [world.counters(sets), world.published(devices, count=2)]


def profile(name: str, count: int = 1) -> dict[str, Any]:
    expression = f'device.attributes["{world.DRIVER}"].profile == "{name}"'
    return world.request(count=count, selectors=[{"cel": {"expression": expression}}])


def test_a_partition_goes_where_it_leaves_the_largest_ones_whole() -> None:
    slices = partitioned(2)
    assert world.names(world.run(world.claim(profile("1g")), slices)) == ["0-1g-0"]
    assert world.names(world.run(world.claim(profile("1g")), slices, preferences=DEFAULTS)) == ["0-1g-6"]
    found = world.run(world.claim(profile("1g")), slices, preferences=DEFAULTS, having=has("1-1g-6"))
    assert world.names(found) == ["1-1g-4"] or world.names(found) == ["1-1g-5"]
    found = world.run(world.claim(profile("2g")), slices, preferences=DEFAULTS, having=has("1-1g-0"))
    assert world.names(found) == ["1-2g-2"]


def test_partitions_of_one_claim_are_on_one_board_where_they_can_be() -> None:
    slices = partitioned(3)
    having = has("0-3g-0", "1-3g-0", "1-2g-4")
    found = world.run(world.claim(profile("1g", 3)), slices, preferences=DEFAULTS, having=having)
    assert world.names(found) == ["0-1g-4", "0-1g-5", "0-1g-6"]


def test_a_shared_device_that_is_in_use_comes_before_an_untouched_one() -> None:
    devices = [
        world.device(f"d{at}", allowMultipleAllocations=True, capacity={"memory": {"value": "10"}}) for at in range(3)
    ]
    claim = world.claim(world.request(capacity={"requests": {"memory": "4"}}))
    found = world.run(claim, [world.published(devices)], preferences=DEFAULTS, having=has("d1", share="share-a"))
    assert world.names(found) == ["d1"]


def test_devices_of_one_bus_are_one_board() -> None:
    devices = [world.device(f"d{at}", attributes={PCI_BUS_ID: f"0000:0{at // 2}:00.0"}) for at in range(6)]
    found = world.run(world.claim(world.request()), [world.published(devices)], preferences=DEFAULTS, having=has("d3"))
    assert world.names(found) == ["d2"]


def test_an_earlier_alternative_comes_before_any_preference() -> None:
    devices = [world.device("d0", attributes={"x": 1}), world.device("d1", attributes={"x": 2})]
    first = {"name": "one", "deviceClassName": "any", "selectors": [_cel(1)]}
    listed = {"name": "list", "firstAvailable": [first, {"name": "two", "deviceClassName": "any"}]}
    claim = world.claim(world.request(), listed)
    found = world.run(claim, [world.published(devices)])
    assert [one.request for one in found.results[0].devices.results] == ["gpu", "list/two"]  # type: ignore[union-attr]
    found = world.run(claim, [world.published(devices)], preferences=DEFAULTS)
    assert [one.request for one in found.results[0].devices.results] == ["gpu", "list/one"]  # type: ignore[union-attr]
    assert world.names(found) == ["d1", "d0"]


def _cel(value: int) -> dict[str, Any]:
    return {"cel": {"expression": f'device.attributes["{world.DRIVER}"].x == {value}'}}


def test_a_device_whose_selector_fails_is_left_out_where_the_first_answer_does_without_it() -> None:
    devices = [gpu("d0", root=0, numa=0), gpu("d1", root=1, numa=1), world.device("d2")]
    expression = f'device.attributes["{NUMA_NODE.partition("/")[0]}"].numaNode >= 0'
    claim = world.claim(world.request(selectors=[{"cel": {"expression": expression}}]))
    found = world.run(claim, [world.published(devices)], preferences=DEFAULTS, having=has("d1", driver="other"))
    assert world.names(found) == ["d0"]


def test_many_equal_devices_cost_few_steps() -> None:
    slices = [world.published([gpu(f"d{at}", root=0, numa=0) for at in range(64)])]
    found = world.run(world.claim(world.request(count=16)), slices, preferences=DEFAULTS)
    assert isinstance(found, Allocation)
    assert found.is_best
    assert found.steps < 100
