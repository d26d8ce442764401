"""GPUs by amounts: threads and memory of one GPU, as limits of the container that asked for both."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import errors, settings
from fairlead.model.gpu import Inventory
from fairlead.model.ids import GPUUUID, DeviceID
from fairlead.node.deviceplugin import plugin as deviceplugin
from fairlead.plan.gpu import clash, deviceids, nodeconfig
from fairlead.plan.gpu.allocation.choose import Topology
from fairlead.plan.gpu.attribution import Holding
from fairlead.plan.gpu.offer import advertise
from fairlead.plan.sharing import amounts, fields, mps
from fairlead.wire.nvidia import pluginconfig, pluginreader
from fairlead.wire.proto import deviceplugin_pb2 as pb
from tests.unit.plan.sharing.test_mps import gpu

TEXT = "fairlead: {sharing: {mpsAmounts: {devices: [0, 1]}}}"
CORE, MEMORY = pluginconfig.MPS_CORE, pluginconfig.MPS_MEMORY
GPUS = (gpu(0), gpu(1), gpu(2))


def offers(text: str = TEXT) -> dict[str, advertise.Advertisement]:
    config = nodeconfig.plan_config(settings.Settings(), pluginreader.parse(text, source="f"))
    known = {one.uuid: one for one in GPUS}
    whole = advertise.plan_advertisements(
        Inventory(gpus=GPUS), nvidia_resource="nvidia.com/gpu", verdicts={}, known=known
    )
    folders = {uuid: ("/pipe", "/shm") for uuid in known}
    found = mps.plan_clients(amounts.plan_shared(whole, config, known), known, folders)
    return {ad.resource: ad for ad in found}


def units(gpu_index: int, first: int, count: int) -> tuple[str, ...]:
    return tuple(f"GPU-{gpu_index}::{number}" for number in range(first, first + count))


class Node:
    """The two plugins of one node."""

    def __init__(self) -> None:
        pairing = amounts.Pairing()
        self.plugins = {name: deviceplugin.Plugin(name) for name in (CORE, MEMORY)}
        for name, one in self.plugins.items():
            one.pairing = pairing
            one.update(offers()[name], Topology())

    async def prefer(self, resource: str, available: tuple[str, ...], size: int) -> list[str]:
        asked = pb.ContainerPreferredAllocationRequest(available_deviceIDs=available, allocation_size=size)
        request = pb.PreferredAllocationRequest(container_requests=[asked])
        answer = await self.plugins[resource].preferred_allocation(request)
        return list(answer.container_responses[0].deviceIDs)

    async def allocate(self, resource: str, ids: tuple[str, ...]) -> pb.ContainerAllocateResponse:
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=ids)])
        return (await self.plugins[resource].allocate(request)).container_responses[0]


def test_a_gpu_is_offered_as_a_hundred_percent_and_its_gibibytes() -> None:
    ads = offers()
    assert {name: len(ad.devices) for name, ad in ads.items()} == {"nvidia.com/gpu": 1, CORE: 200, MEMORY: 160}
    assert set(mps.plan_daemons(ads.values())) == {"GPU-0", "GPU-1"}
    offer = advertise.offers_of(ads.values())[GPUUUID("GPU-0")]
    assert (offer.resource, offer.means, offer.replicas) == (CORE, "mps", 100)


async def test_a_request_becomes_limits_of_one_gpu() -> None:
    node = Node()
    threads = await node.allocate(CORE, units(1, 0, 50))
    assert threads.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in threads.envs
    preferred = await node.prefer(MEMORY, (*units(0, 0, 80), *units(1, 0, 10)), 8)
    assert {name.partition("::")[0] for name in preferred} == {"GPU-1"}
    memory = await node.allocate(MEMORY, tuple(preferred))
    assert memory.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=8192M"
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in memory.envs


async def test_amounts_of_two_gpus_are_refused_in_either_order() -> None:
    for first, second in ((CORE, MEMORY), (MEMORY, CORE)):
        node = Node()
        await node.allocate(first, units(0, 0, 10))
        with pytest.raises(errors.RequestError, match="MPS serves one GPU"):
            await node.allocate(second, units(1, 0, 10))
        await node.allocate(second, units(1, 0, 10))  # another container, whose first this is


async def test_the_next_container_is_not_held_to_the_last_ones_gpu() -> None:
    node = Node()
    for resource in (CORE, MEMORY):
        await node.allocate(resource, units(0, 0, 10))
    for resource in (MEMORY, CORE):
        await node.allocate(resource, units(1, 0, 10))


async def test_amounts_of_several_gpus_in_one_request_are_refused() -> None:
    with pytest.raises(errors.RequestError, match="are of 2 GPUs"):
        await Node().allocate(CORE, (*units(0, 0, 5), *units(1, 0, 5)))


async def test_a_percentage_with_which_too_many_clients_would_fit_is_refused() -> None:
    with pytest.raises(errors.RequestError, match="3 is the least"):
        await Node().allocate(CORE, units(0, 0, 2))
    await Node().allocate(CORE, units(0, 0, 3))


async def test_pods_that_are_placed_beside_each_other_get_both_of_one_gpu() -> None:
    node = Node()
    await node.allocate(CORE, units(0, 0, 60))
    await node.allocate(CORE, units(1, 0, 60))
    free = (*units(0, 0, 80), *units(1, 0, 80))
    first = await node.prefer(MEMORY, free, 40)
    await node.allocate(MEMORY, tuple(first))
    second = await node.prefer(MEMORY, tuple(set(free) - set(first)), 40)
    await node.allocate(MEMORY, tuple(second))
    assert [name.partition("::")[0] for name in (first[0], second[0])] == ["GPU-0", "GPU-1"]


async def test_small_amounts_fill_a_gpu_before_the_next() -> None:
    node = Node()
    free = (*units(0, 0, 100), *units(1, 50, 50))
    assert {name.partition("::")[0] for name in await node.prefer(CORE, free, 50)} == {"GPU-1"}


def holding(resource: str, ids: tuple[str, ...], pod: str = "p") -> Holding:
    return Holding(
        namespace="default", pod=pod, container="c", resource=resource, ids=tuple(DeviceID(one) for one in ids)
    )


def test_a_container_without_both_amounts_must_not_start() -> None:
    threads, memory = holding(CORE, units(0, 0, 50)), holding(MEMORY, units(0, 0, 8))
    assert amounts.find_problem(CORE, threads.ids, [threads, memory]) == ""
    assert amounts.find_problem(MEMORY, memory.ids, [threads, memory]) == ""
    other = dataclasses.replace(memory, pod="q")
    assert "not for nvidia.com/mps-memory" in amounts.find_problem(CORE, threads.ids, [threads, other])
    elsewhere = holding(MEMORY, units(1, 0, 8))
    assert "of 2 GPUs" in amounts.find_problem(CORE, threads.ids, [threads, elsewhere])
    assert "no container" in amounts.find_problem(CORE, threads.ids, [])


def test_only_amounts_are_checked_before_a_start() -> None:
    assert all(mps.TOO_MANY not in {device.reason for device in ad.devices} for ad in offers().values())


async def test_the_kubelet_is_asked_to_call_before_a_start_for_amounts_alone() -> None:
    asked = {name: (await deviceplugin.Plugin(name).options()).pre_start_required for name in (CORE, "nvidia.com/gpu")}
    assert asked == {CORE: True, "nvidia.com/gpu": False}


def test_threads_of_a_gpu_that_one_pod_has_are_no_clash_with_its_memory() -> None:
    ads = offers()
    table = deviceids.make_table(GPUS)
    held = [holding(CORE, units(0, 0, 50)), holding(MEMORY, units(0, 0, 8))]
    assert clash.find_clashes(ads.values(), held, table) == {}
    whole = [holding("nvidia.com/gpu", ("GPU-0",))]
    assert {key[0] for key in clash.find_clashes(ads.values(), whole, table)} == {CORE, MEMORY}


def test_the_file_is_read_explained_and_written_back() -> None:
    found = pluginreader.parse(TEXT, source="f")
    assert pluginreader.parse(pluginconfig.emit(found), source="f") == found
    [one] = fields.explain(found)
    assert one.path == "fairlead.sharing.mpsAmounts"
    assert "GiB" in one.text
    with pytest.raises(errors.Invalid, match=r"mpsAmounts\.device: unknown field"):
        pluginreader.parse("fairlead: {sharing: {mpsAmounts: {device: [0]}}}", source="f")
    with pytest.raises(errors.Invalid, match="migStrategy"):
        offers("flags: {migStrategy: single}\nfairlead: {sharing: {mpsAmounts: {}}}")
