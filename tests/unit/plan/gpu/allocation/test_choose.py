"""Preferred allocation: against brute force on small machines, by behaviour and by bound on large ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead import errors
from fairlead.model.device import Device
from fairlead.model.gpu import Inventory, Link, LinkKind
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.plan.gpu.allocation import choose
from tests import devices as named
from tests import gpus

Way = Callable[[int, int], tuple[LinkKind, int]]


def nvswitch(_a: int, _b: int) -> tuple[LinkKind, int]:
    return LinkKind.NVSWITCH, 18


def pcie(a: int, b: int) -> tuple[LinkKind, int]:
    if a // 2 == b // 2:
        return LinkKind.SINGLE_SWITCH, 0
    return (LinkKind.SAME_NODE if a // 4 == b // 4 else LinkKind.SYSTEM), 0


def machine(count: int, way: Way = nvswitch, *, numa_size: int | None = 4) -> Inventory:
    found = tuple(
        gpus.gpu(
            i,
            uuid=GPUUUID(f"GPU-{i:02}"),
            pci_bus_id=f"0000:{i + 16:02x}:00.0",
            numa_node=None if numa_size is None else i // numa_size,
        )
        for i in range(count)
    )
    links = tuple(
        Link(a=found[a].uuid, b=found[b].uuid, kind=kind, lanes=lanes)
        for a, b in itertools.combinations(range(count), 2)
        for kind, lanes in [way(a, b)]
    )
    return Inventory(gpus=found, links=links)


def ids(numbers: Sequence[int]) -> tuple[DeviceID, ...]:
    return tuple(DeviceID(f"GPU-{number:02}") for number in numbers)


def numbers(chosen: Sequence[DeviceID]) -> list[int]:
    return [int(item.removeprefix("GPU-")) for item in chosen]


def pick(inventory: Inventory, free: Sequence[int], size: int, must: Sequence[int] = ()) -> list[int]:
    devices = {DeviceID(gpu.uuid): named.gpu(gpu.uuid) for gpu in inventory.gpus}
    topology = choose.plan_topology(inventory)
    return numbers(choose.choose_devices(ids(free), ids(must), size, devices=devices, topology=topology))


def worth(inventory: Inventory, free: frozenset[int], chosen: frozenset[int]) -> tuple[int, ...]:
    """The objective, restated plainly and lexicographically: the oracle of the brute force."""
    score = {
        frozenset(numbers([DeviceID(k.a), DeviceID(k.b)])): choose.pair_score(k.kind, k.lanes) for k in inventory.links
    }
    numa = {gpu.index: gpu.numa_node for gpu in inventory.gpus}
    place = {
        gpu.index: (gpu.numa_node, [g.index for g in inventory.gpus if g.numa_node == gpu.numa_node].index(gpu.index))
        for gpu in inventory.gpus
    }

    def pairs(group: frozenset[int]) -> list[tuple[int, int]]:
        return list(itertools.combinations(sorted(group), 2))

    def in_cell(pair: tuple[int, int], cell: int) -> bool:
        (numa_a, at_a), (numa_b, at_b) = (place[number] for number in pair)
        return numa_a == numa_b and at_a // cell == at_b // cell

    rest = free - chosen
    return (
        sum(score[frozenset(pair)] for pair in pairs(chosen)),
        sum(numa[a] == numa[b] for a, b in pairs(chosen)),
        sum(score[frozenset(pair)] for pair in pairs(rest)),
        *(sum(in_cell(pair, cell) for pair in pairs(rest)) for cell in (8, 4, 2)),
        sum(in_cell(pair, cell) for pair in pairs(chosen) for cell in (8, 4, 2)),
    )


def best_worth(inventory: Inventory, free: Sequence[int], size: int, must: Sequence[int]) -> tuple[int, ...]:
    others = [number for number in free if number not in must]
    sets = (frozenset([*must, *more]) for more in itertools.combinations(others, size - len(must)))
    return max(worth(inventory, frozenset(free), chosen) for chosen in sets)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Inventory, list[int], int, list[int]]:
    count = draw(st.integers(1, 9))
    kinds = draw(st.sampled_from([nvswitch, pcie, None]))
    table = {pair: draw(st.integers(1, 4)) for pair in itertools.combinations(range(count), 2)} if kinds is None else {}
    way = kinds or (lambda a, b: (LinkKind.NVLINK, table[a, b]))
    inventory = machine(count, way, numa_size=draw(st.sampled_from([None, 2, 4])))
    free = draw(st.lists(st.integers(0, count - 1), unique=True, min_size=1))
    size = draw(st.integers(1, len(free)))
    must = draw(st.lists(st.sampled_from(free), unique=True, max_size=size))
    return inventory, free, size, must


@given(problem=problems())
@settings(max_examples=120, deadline=None)
def test_choice_is_as_good_as_brute_force(problem: tuple[Inventory, list[int], int, list[int]]) -> None:
    inventory, free, size, must = problem
    chosen = pick(inventory, free, size, must)
    assert len(chosen) == size
    assert set(must) <= set(chosen) <= set(free)
    assert worth(inventory, frozenset(free), frozenset(chosen)) == best_worth(inventory, free, size, must)


@given(problem=problems(), seed=st.randoms())
@settings(max_examples=60, deadline=None)
def test_choice_depends_on_the_sets_only(
    problem: tuple[Inventory, list[int], int, list[int]], seed: random.Random
) -> None:
    inventory, free, size, must = problem
    shuffled = seed.sample(free, len(free))
    assert pick(inventory, free, size, must) == pick(inventory, shuffled, size, must)


@given(problem=problems(), seed=st.randoms())
@settings(max_examples=60, deadline=None)
def test_what_is_taken_is_chosen_only_where_nothing_else_is_left(
    problem: tuple[Inventory, list[int], int, list[int]], seed: random.Random
) -> None:
    inventory, free, size, must = problem
    held = frozenset(ids(seed.sample(free, seed.randint(0, len(free))))) - set(ids(must))
    chosen = choose.choose_devices(
        ids(free),
        ids(must),
        size,
        devices={DeviceID(str(gpu.uuid)): named.gpu(str(gpu.uuid)) for gpu in inventory.gpus},
        topology=choose.plan_topology(inventory),
        taken=held,
    )
    others = set(ids(free)) - held
    assert len(held.intersection(chosen)) == max(0, size - len(others))
    assert set(ids(must)) <= set(chosen)


@pytest.mark.parametrize(
    ("free", "size", "expected"),
    [
        (range(8), 1, [0]),
        ((1, 2, 3, 4, 5, 6, 7), 1, [1]),  # the broken pair first
        ((0, 1, 2, 3, 4, 6), 1, [4]),  # the broken quad first
        ((0, 2, 4, 5, 6), 1, [0]),  # the more broken quad first, whole pairs stay
        (range(8), 2, [0, 1]),
        ((2, 3, 4, 5, 6, 7), 2, [2, 3]),
        ((0, 1, 2, 3, 4, 6), 2, [4, 6]),  # a whole quad is worth more than a whole pair
        ((0, 1, 2, 4), 2, [0, 1]),  # never across sockets where one socket has enough
        ((1, 2, 3, 4, 5, 6, 7), 4, [4, 5, 6, 7]),
        (range(8), 4, [0, 1, 2, 3]),
        ((3, 4), 2, [3, 4]),
    ],
)
def test_nvswitch_keeps_whole_cells_and_one_socket(free: Sequence[int], size: int, expected: list[int]) -> None:
    assert pick(machine(8), list(free), size) == expected


def test_direct_links_beat_neighbourhood() -> None:
    links = {(0, 3): 2, (1, 2): 2}

    def way(a: int, b: int) -> tuple[LinkKind, int]:
        return (LinkKind.NVLINK, links[a, b]) if (a, b) in links else (LinkKind.HOST_BRIDGE, 0)

    assert pick(machine(4, way), [0, 1, 3], 2) == [0, 3]


def test_a_gpu_with_fewer_switch_links_is_taken_last() -> None:
    def way(a: int, b: int) -> tuple[LinkKind, int]:
        return LinkKind.NVSWITCH, 17 if 0 in {a, b} else 18

    assert 0 not in pick(machine(8, way), range(8), 4)


def test_must_include_pulls_its_pair_and_socket() -> None:
    assert pick(machine(8), range(8), 2, [6]) == [6, 7]
    assert all(number >= 4 for number in pick(machine(8), range(8), 3, [6]))


@pytest.mark.parametrize("size", range(1, 16))
def test_sixteen_gpus_stay_on_one_socket_where_they_fit(size: int) -> None:
    free = [number for number in range(16) if number != 5]
    chosen = pick(machine(16, numa_size=8), free, size)
    smaller = min(sum(number < 8 for number in chosen), sum(number >= 8 for number in chosen))
    assert len(chosen) == size
    assert (smaller == 0) == (size <= 8)


@given(seed=st.integers(0, 10_000), size=st.integers(2, 14))
@settings(max_examples=10, deadline=None)
def test_a_large_mesh_is_bounded_and_no_worse_than_any_random_set(seed: int, size: int) -> None:
    dice = random.Random(seed)
    table = {pair: dice.randint(1, 4) for pair in itertools.combinations(range(16), 2)}
    inventory = machine(16, lambda a, b: (LinkKind.XGMI, table[a, b]), numa_size=None)
    chosen = pick(inventory, range(16), size)
    mine = worth(inventory, frozenset(range(16)), frozenset(chosen))
    others = [frozenset(dice.sample(range(16), size)) for _ in range(50)]
    assert all(mine >= worth(inventory, frozenset(range(16)), other) for other in others)


def replicas(gpus: int, each: int) -> dict[DeviceID, Device]:
    made = [named.replicated(named.gpu(f"GPU-{gpu:02}"), n) for gpu in range(gpus) for n in range(each)]
    return {device.id: device for device in made}


def test_replicas_of_one_request_go_to_different_gpus() -> None:
    devices = replicas(4, 10)
    chosen = choose.choose_devices(tuple(devices), (), 4, devices=devices, topology=choose.plan_topology(machine(4)))
    assert len({devices[item].gpu for item in chosen}) == 4


def test_replicas_go_to_the_gpu_with_fewest_in_use() -> None:
    devices = replicas(2, 3)
    free = tuple(item for item in devices if item not in {"GPU-00::0", "GPU-00::1"})
    chosen = choose.choose_devices(free, (), 1, devices=devices, topology=choose.plan_topology(machine(2)))
    assert chosen == ("GPU-01::0",)


def test_unknown_free_ids_are_tolerated_and_come_last() -> None:
    devices = {item: named.gpu(item) for item in ids([0, 1])}
    topology = choose.plan_topology(machine(2))
    free = (DeviceID("GPU-gone"), *ids([0, 1]))
    assert choose.choose_devices(free, (), 2, devices=devices, topology=topology) == ids([0, 1])
    assert choose.choose_devices(free[:2], (), 1, devices=devices, topology=topology) == ids([0])
    assert choose.choose_devices(free, (free[0],), 2, devices=devices, topology=topology) == (*ids([0]), free[0])


@pytest.mark.parametrize(
    ("free", "must", "size", "kind", "reason"),
    [
        ([0, 1], [], 3, errors.Insufficient, "InsufficientDevices"),
        ([0, 1], [2], 2, errors.RequestError, "MustIncludeUnavailable"),
        ([0, 1], [0, 1], 1, errors.RequestError, "AllocationSizeInvalid"),
        ([0, 1], [], -1, errors.RequestError, "AllocationSizeInvalid"),
    ],
)
def test_impossible_requests_say_why(
    free: list[int], must: list[int], size: int, kind: type[errors.FairleadError], reason: str
) -> None:
    with pytest.raises(kind) as caught:
        pick(machine(4), free, size, must)
    assert caught.value.reason == reason


def test_nothing_asked_is_nothing_chosen() -> None:
    assert pick(machine(2), [0, 1], 0) == []
