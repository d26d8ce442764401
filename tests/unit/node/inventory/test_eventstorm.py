"""A GPU that reports a fault a hundred thousand times: what is kept, written and sent stays small, and is right."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest
import structlog
import structlog.testing

from fairlead import loglines
from fairlead.model.gpu import EventKind, GPUEvent
from fairlead.model.ids import GPUUUID
from fairlead.node.deviceplugin import plugin
from fairlead.node.inventory import monitor
from fairlead.plan.gpu.allocation import choose
from fairlead.plan.gpu.offer import advertise
from fairlead.silicon import eventbus
from fairlead.silicon.sim import machine, silicon
from fairlead.wire.proto import deviceplugin_pb2 as pb

STORM = 100_000


@pytest.fixture
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """The lines that the log would have, through the limit of every process's log."""
    capture = structlog.testing.LogCapture()
    structlog.configure(processors=[loglines.LineLimit(), capture], cache_logger_on_first_use=False)
    yield capture.entries
    structlog.reset_defaults()


class Node:
    """Simulated silicon, what is known of it, and a plugin whose list somebody reads."""

    def __init__(self, folder: Path) -> None:
        self.silicon = silicon.SimulatedSilicon(folder, "h100x8")
        self.monitor = monitor.InventoryMonitor(self.silicon, rescan_s=60)
        self.plugin = plugin.Plugin("nvidia.com/gpu")
        self.sent: list[pb.ListAndWatchResponse] = []
        self.news = asyncio.Event()

    async def advertise(self) -> None:
        async for snapshot in self.monitor.snapshots.changes():
            for ad in advertise.plan_advertisements(
                snapshot.inventory,
                nvidia_resource="nvidia.com/gpu",
                verdicts=snapshot.verdicts,
                known=snapshot.known,
            ):
                self.plugin.update(ad, choose.Topology())

    async def read_lists(self) -> None:
        async for answer in self.plugin.list_and_watch():
            self.sent.append(answer)
            self.news.set()

    async def until_sent(self, healthy: int) -> None:
        """Wait until the list that was sent last has so many healthy GPUs."""
        while not self.sent or _healthy(self.sent[-1]) != healthy:
            self.news.clear()
            await self.news.wait()

    async def until(self, healthy: int) -> None:
        """Wait until so many GPUs are known and healthy."""
        async for snapshot in self.monitor.snapshots.changes():
            if sum(one.is_healthy for one in snapshot.verdicts.values()) == healthy:
                return

    def storm(self) -> None:
        for number in range(STORM):
            code = 79 if number % 3 == 0 else 13
            self.silicon.machine.post(machine.Event(gpu=number % 2, type=machine.EVENT_XID, data=code))


@pytest.mark.slow  # 5 s: its parts are each tested below
async def test_a_storm_of_xids_leaves_the_last_state_and_little_else(
    tmp_path: Path, logged: list[MutableMapping[str, Any]]
) -> None:
    node = Node(tmp_path)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(55):
        running = [tasks.create_task(one) for one in (node.monitor.run(), node.advertise(), node.read_lists())]
        await node.until(healthy=8)
        tracemalloc.start()
        await asyncio.to_thread(node.storm)
        await node.until(healthy=6)
        await node.until_sent(healthy=6)
        await asyncio.sleep(0.3)  # what would still come, and should not
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        for task in running:
            task.cancel()
    await node.silicon.close()
    assert _healthy(node.sent[-1]) == 6
    assert len(node.sent) <= 4
    assert 0 < len(logged) < 200
    assert peak_bytes < 64 * 2**20


def _healthy(answer: pb.ListAndWatchResponse) -> int:
    return sum(device.health == "Healthy" for device in answer.devices)


def xid(code: int, gpu: str = "GPU-0") -> GPUEvent:
    return GPUEvent(kind=EventKind.XID, uuid=GPUUUID(gpu), xid=code)


async def test_equal_events_that_wait_are_one_and_stand_where_the_last_of_them_did() -> None:
    bus = eventbus.EventBus()
    subscription = bus.subscribe()
    back = GPUEvent(kind=EventKind.RECOVERED, uuid=GPUUUID("GPU-0"))
    for event in (xid(79), xid(13), back, xid(79), xid(79, "GPU-1")):
        bus.publish(event)
    assert [await anext(subscription) for _ in range(4)] == [xid(13), back, xid(79), xid(79, "GPU-1")]


async def test_more_events_of_one_gpu_than_may_wait_become_a_scan_and_take_nothing_from_another_gpu() -> None:
    bus = eventbus.EventBus()
    subscription = bus.subscribe()
    bus.publish(xid(94, "GPU-1"))
    for code in range(1000):
        bus.publish(xid(code))
    found = [await anext(subscription)]
    async with asyncio.timeout(50):
        while found[-1].kind is not EventKind.CHANGED:
            found.append(await anext(subscription))
    assert found[0] == xid(94, "GPU-1")
    assert len(found) <= eventbus.WAITING + 2
    assert (found[-1].uuid, found[-2].xid) == ("GPU-0", 999)
