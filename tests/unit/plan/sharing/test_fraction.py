"""A part of a GPU, by memory and compute, becomes the resources that stand for it, or is refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from fairlead import errors
from fairlead.model.gpu import GPU, MIGDevice
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.mig import table
from fairlead.plan.sharing import fraction

GIB = 1 << 30
CORE, MEMORY = "nvidia.com/mps-core", "nvidia.com/mps-memory"
BARE = GPU(
    uuid=GPUUUID("GPU-0"),
    index=0,
    minor=0,
    pci_bus_id="",
    name="NVIDIA H100 80GB HBM3",
    memory_bytes=80 * GIB,
    compute_capability=(9, 0),
)


def node(*gpus: fraction.SharedGPU, **offered: int) -> fraction.Node:
    names = {one.resource for one in gpus if one.resource} | {f"nvidia.com/{name}" for name in offered}
    return fraction.Node(allocatable=names, gpus=gpus)


def shared(resource: str, means: str, replicas: int, gpu: GPU = BARE) -> fraction.SharedGPU:
    return fraction.SharedGPU(gpu=gpu, resource=resource, means=means, replicas=replicas)


def divided(devices: Mapping[str, int], name: str = "NVIDIA H100 80GB HBM3") -> fraction.SharedGPU:
    """A GPU in MIG mode. Args: devices: MiB by profile."""
    found = tuple(
        MIGDevice(
            uuid=MIGUUID(f"MIG-{at}"),
            index=at,
            profile=profile,
            gpu_instance=at,
            compute_instance=0,
            placement_start=None,
            placement_size=None,
            memory_bytes=mib << 20,
        )
        for at, (profile, mib) in enumerate(devices.items())
    )
    return fraction.SharedGPU(
        gpu=dataclasses.replace(BARE, name=name, mig_enabled=True, mig_devices=found),
        resource="",
        slices=table.slices_of(name, fraction.MOST_SLICES),
    )


AMOUNTS = node(shared(CORE, "mps", 100))
QUARTERS = node(shared("nvidia.com/gpu.shared", "mps", 4))
SLICES = node(shared("nvidia.com/gpu", "time-slicing", 4))
DEVICES = fraction.Node(
    allocatable={"nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"},
    gpus=[divided({"1g.10gb": 9984, "3g.40gb": 40448})],
)


def find(*nodes: fraction.Node, memory: int = 0, percent: int = 0, isolation: str = "") -> fraction.Part:
    return fraction.find_part(fraction.Wanted(memory_bytes=memory * GIB, percent=percent, isolation=isolation), nodes)


@pytest.mark.parametrize(
    ("memory", "percent", "resources"),
    [
        (20, 30, {CORE: 30, MEMORY: 20}),
        (20, 0, {CORE: 25, MEMORY: 20}),  # the same share of the threads
        (0, 50, {CORE: 50, MEMORY: 40}),  # and of the memory
        (1, 1, {CORE: 3, MEMORY: 1}),  # MPS serves 48 clients: none may be smaller
        (80, 100, {CORE: 100, MEMORY: 80}),
    ],
)
def test_by_amounts_a_part_is_exactly_what_was_asked_for(memory: int, percent: int, resources: dict[str, int]) -> None:
    assert dict(find(AMOUNTS, memory=memory, percent=percent).resources) == resources


def test_the_smallest_part_that_is_large_enough_is_taken_whatever_isolates_it() -> None:
    for nodes in ((QUARTERS, DEVICES), (DEVICES, QUARTERS)):
        assert dict(find(*nodes, memory=8).resources) == {"nvidia.com/mig-1g.10gb": 1}
        assert dict(find(*nodes, memory=8, percent=20).resources) == {"nvidia.com/gpu.shared": 1}
        assert dict(find(*nodes, memory=30).resources) == {"nvidia.com/mig-3g.40gb": 1}
    found = find(DEVICES, percent=40)
    assert (found.isolation, found.percent, found.memory_bytes) == ("mig", 42, 40448 << 20)


def test_a_part_without_isolation_is_given_only_to_who_asks_for_none() -> None:
    with pytest.raises(errors.Insufficient, match="MPS or MIG") as refused:
        find(SLICES, memory=8)
    assert refused.value.reason == "IsolationAbsent"
    assert "--isolation none" in str(refused.value.hint)
    found = find(SLICES, memory=8, isolation="none")
    assert (dict(found.resources), found.isolation) == ({"nvidia.com/gpu": 1}, "none")
    assert "nothing limits it" in str(found)
    # More than an even share would promise a GPU twice.
    with pytest.raises(errors.Insufficient) as large:
        find(SLICES, memory=21, isolation="none")
    assert large.value.reason == "FractionTooLarge"


@pytest.mark.parametrize(
    ("nodes", "isolation"),
    [((SLICES,), "mps"), ((AMOUNTS,), "mig"), ((DEVICES,), "mps"), ((), ""), ((AMOUNTS,), "none")],
)
def test_isolation_that_nobody_offers_is_refused_by_its_name(nodes: tuple[fraction.Node, ...], isolation: str) -> None:
    with pytest.raises(errors.Insufficient) as refused:
        find(*nodes, memory=1, isolation=isolation)
    assert refused.value.reason == "IsolationAbsent"
    assert (isolation or "MPS") in refused.value.message
    assert refused.value.hint


def test_more_than_the_largest_part_is_refused_with_the_largest() -> None:
    with pytest.raises(errors.Insufficient, match=r"mig-3g.40gb=1: 39.5 GiB and 42%") as refused:
        find(DEVICES, memory=60)
    assert refused.value.reason == "FractionTooLarge"
    with pytest.raises(errors.Insufficient, match="80 GiB"):
        find(AMOUNTS, memory=81)


def test_mig_devices_of_a_node_that_names_profiles_alone_count_for_less_than_their_name() -> None:
    bare = fraction.Node(allocatable={"nvidia.com/mig-1g.18gb"}, gpus=[divided({}, "NVIDIA H200")])
    assert find(bare, memory=15).isolation == "mig"
    with pytest.raises(errors.Insufficient):
        find(bare, memory=16)
    four = fraction.Node(allocatable={"nvidia.com/mig-1g.6gb"}, gpus=[divided({}, "NVIDIA A30")])
    assert find(four, percent=25).percent == 25
    silent = fraction.Node(allocatable={"nvidia.com/gpu"}, gpus=[divided({"3g.40gb": 0})])  # of an older agent
    assert find(silent, memory=30).memory_bytes == 34 * GIB


def test_devices_that_are_all_alike_are_found_under_the_name_of_whole_gpus() -> None:
    single = fraction.Node(allocatable={"nvidia.com/gpu"}, gpus=[divided({"2g.20gb": 19968})])
    assert dict(find(single, memory=19).resources) == {"nvidia.com/gpu": 1}
    mixed = fraction.Node(allocatable={"nvidia.com/gpu"}, gpus=[*single.gpus, shared("nvidia.com/gpu", "", 0)])
    with pytest.raises(errors.Insufficient):
        find(mixed, memory=19)


@pytest.mark.parametrize(
    ("text", "percent"), [("30", 30), ("30%", 30), ("0.3", 30), ("1", 1), ("100", 100), ("0.29", 29)]
)
def test_compute_is_a_percentage_or_a_fraction(text: str, percent: int) -> None:
    assert fraction.of_percent(text) == percent


@pytest.mark.parametrize("text", ["0", "-1", "101", "1.5", "half", "", "0.005", "nan", "inf", "0.5%", "1e400"])
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid, match="compute"):
        fraction.of_percent(text)


def test_nothing_and_more_than_everything_are_not_parts() -> None:
    for percent in (0, 101):
        with pytest.raises(errors.Invalid):
            find(AMOUNTS, percent=percent)


@pytest.mark.parametrize(
    ("resource", "replicas", "resources"), [("nvidia.com/gpu", 4, {"nvidia.com/gpu": 1}), (CORE, 0, {CORE: 20})]
)
def test_of_a_gpu_whose_memory_is_not_told_compute_alone_is_promised(
    resource: str, replicas: int, resources: dict[str, int]
) -> None:
    untold = node(shared(resource, "mps", replicas, dataclasses.replace(BARE, memory_bytes=0)))
    part = find(untold, percent=20)
    assert dict(part.resources) == resources
    assert "GiB" not in str(part)
    with pytest.raises(errors.Insufficient, match="driver does not tell") as caught:
        find(untold, memory=8)
    assert "--gpu-compute" in (caught.value.hint or "")
