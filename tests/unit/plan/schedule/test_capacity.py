"""What is free and what of it fits, held to a search over every way to fill the nodes."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Mapping

import pytest

from fairlead.plan.schedule import capacity
from fairlead.plan.schedule.reference import UNIT, Kind, NodeInfo, PodInfo, first_refusal, occupied

GPU = "nvidia.com/gpu"
_MODEL = "nvidia.com/gpu.product"


def _node(name: str, gpus: int, *pods: tuple[int, int], model: str = "", is_ready: bool = True) -> NodeInfo:
    """Return a node with pods of so many GPUs and cores."""
    labels = {_MODEL: model} if model else {}
    allocatable = {GPU: gpus * UNIT, "cpu": 64 * UNIT, "memory": 64 << 40, "pods": 110 * UNIT}
    empty = NodeInfo(name=name, labels=labels, allocatable=allocatable, is_ready=is_ready)
    return occupied(empty, (_pod(*pod) for pod in pods))


def _pod(gpus: int, cpu: int = 1) -> PodInfo:
    return PodInfo(requests={GPU: gpus * UNIT, "cpu": cpu * UNIT, "pods": UNIT})


def test_the_largest_pod_and_how_many_of_each_size_fit() -> None:
    nodes = [_node("a", 8, (3, 1)), _node("b", 8, (1, 1), (1, 1)), _node("c", 4)]
    (found,) = capacity.capacities(nodes, {})
    assert (found.offered, found.free, found.largest) == (20, 15, 6)
    assert found.fits == {1: 15, 2: 7, 3: 4, 4: 3, 8: 0}


def test_models_and_slices_have_rows_of_their_own() -> None:
    slices = NodeInfo(name="s", allocatable={"nvidia.com/mig-1g.10gb": 7 * UNIT, "cpu": UNIT})
    rows = capacity.capacities([_node("a", 8, model="H100"), _node("b", 2, model="A100"), slices], {})
    assert [(one.resource, one.model, one.free) for one in rows] == [
        (GPU, "A100", 2),
        (GPU, "H100", 8),
        ("nvidia.com/mig-1g.10gb", "", 7),
    ]
    assert rows[2].fragmented is None


@pytest.mark.parametrize(
    "node",
    [
        _node("a", 8, is_ready=False),
        dataclasses.replace(_node("a", 8), is_unschedulable=True),
        _node("a", 8, (0, 64)),  # no cpu is left
    ],
    ids=["not ready", "cordoned", "without cpu"],
)
def test_devices_of_a_node_that_takes_no_pod_are_offered_and_not_free(node: NodeInfo) -> None:
    (found,) = capacity.capacities([node], {})
    assert (found.offered, found.free, found.largest, found.fits[1]) == (8, 0, 0, 0)


def test_no_pod_asks_for_gpus_so_nothing_is_fragmented() -> None:
    (found,) = capacity.capacities([_node("a", 8)], {(1000, 0, ""): 5})
    assert found.fragmented is None


def test_fragmented_is_what_the_mean_pod_has_no_use_for() -> None:
    nodes = [_node("a", 8, (7, 1)), _node("b", 8)]
    waiting: Mapping[Kind, int] = {(UNIT, 8, ""): 1}
    (found,) = capacity.capacities(nodes, waiting)
    # Of 9 free GPUs the one on `a` serves neither the pod of 7 that runs nor that of 8 that waits.
    assert found.fragmented == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_as_many_pods_of_a_size_fit_as_a_loop_that_places_them_finds(seed: int) -> None:
    chance = random.Random(seed)
    nodes = []
    for number in range(6):
        taken = chance.randrange(0, 9)
        nodes.append(_node(f"n{number}", 8, *((1, 1) for _ in range(taken)), is_ready=chance.random() < 0.9))
    (found,) = capacity.capacities(nodes, {})
    for size, count in found.fits.items():
        assert count == sum(_placed(node, size) for node in nodes)
    fitting = [size for size in range(1, 9) if any(first_refusal(_pod(size), node) is None for node in nodes)]
    assert found.largest == max(fitting, default=0)


def _placed(node: NodeInfo, size: int) -> int:
    """Return how many pods of a size the filters let onto a node, one after another."""
    there = [PodInfo(requests=dict(node.taken))]
    bare = occupied(node, ())
    for count in itertools.count():
        if first_refusal(_pod(size), occupied(bare, there)) is not None:
            return count
        there.append(_pod(size))
    raise AssertionError
