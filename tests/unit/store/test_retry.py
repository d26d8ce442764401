"""Two writers of one status: neither undoes the other."""

from __future__ import annotations

import asyncio
import functools

import msgspec
import pytest

from fairlead import errors
from fairlead.store import retry
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import gpudevice, meta
from fairlead.wire.kubernetes.gpudevice import GPUDevice

NAME = "gpu-1"


@pytest.fixture
async def store() -> memory.MemoryStore:
    one = memory.MemoryStore()
    spec = gpudevice.GPUDeviceSpec(
        node_name="n", index=0, minor=0, uuid="GPU-1", vendor="nvidia", product="X", memory="1Mi", simulated=False
    )
    await one.create(GPUDevice(metadata=meta.ObjectMeta(name=NAME), spec=spec))
    return one


def with_health(device: GPUDevice, health: str) -> GPUDevice:
    return msgspec.structs.replace(device, status=msgspec.structs.replace(device.status, health=health))


def with_holder(device: GPUDevice, pod: str) -> GPUDevice:
    holders = (*device.status.holders, gpudevice.Holder(namespace="team", pod=pod))
    return msgspec.structs.replace(device, status=msgspec.structs.replace(device.status, holders=holders))


async def test_writers_of_different_parts_keep_each_others(store: memory.MemoryStore) -> None:
    async with asyncio.TaskGroup() as tasks:
        for pod in ("a", "b", "c"):
            tasks.create_task(retry.change_status(store, GPUDevice, NAME, functools.partial(with_holder, pod=pod)))
        tasks.create_task(retry.change_status(store, GPUDevice, NAME, lambda device: with_health(device, "Healthy")))
    status = (await store.get(GPUDevice, NAME)).status
    assert status.health == "Healthy"
    assert sorted(holder.pod for holder in status.holders) == ["a", "b", "c"]


async def test_a_change_is_made_again_on_what_somebody_else_wrote_meanwhile(store: memory.MemoryStore) -> None:
    seen: list[str] = []

    class Racing:
        """The same store, in which somebody marks the GPU lost just before our first write."""

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        async def update_status(self, item: GPUDevice) -> GPUDevice:
            if len(seen) == 1:
                await store.update_status(with_health(await store.get(GPUDevice, NAME), "Lost"))
            return await store.update_status(item)

    def look(device: GPUDevice) -> GPUDevice:
        seen.append(device.status.health)
        return with_holder(device, "a")

    done = await retry.change_status(Racing(), GPUDevice, NAME, look)  # type: ignore[arg-type]  # delegates the rest
    assert seen == ["", "Lost"]
    assert (done.status.health, len(done.status.holders)) == ("Lost", 1)


async def test_nothing_is_written_where_nothing_changes(store: memory.MemoryStore) -> None:
    before = await store.get(GPUDevice, NAME)
    assert await retry.change_status(store, GPUDevice, NAME, lambda _: None) == before
    assert await retry.change_status(store, GPUDevice, NAME, lambda device: device) == before


async def test_an_object_that_is_gone_is_said_to_be(store: memory.MemoryStore) -> None:
    with pytest.raises(errors.NotFound):
        await retry.change_status(store, GPUDevice, "gpu-2", lambda device: device)
