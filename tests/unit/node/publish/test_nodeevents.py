"""Steps about a node: in order, once each, and not lost while the store is away."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from structlog.testing import capture_logs

from fairlead import errors
from fairlead.model.gpu import GPU, Driver, Inventory, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.inventory import health
from fairlead.node.publish import nodeevents
from fairlead.store import port, tracerecorder
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, meta
from tests.unit.store import virtualtime

NODE = "worker-1"
AWAY = errors.Unavailable("connection refused", reason="Refused")


class Moody:
    """A store that can be away, and whose answers can be lost."""

    def __init__(self) -> None:
        self.inner = memory.MemoryStore()
        self.attempts = 0
        self.is_away = False
        self.loses_answers = False

    def __getattr__(self, name: str) -> object:
        return getattr(self.inner, name)

    async def get(self, kind: type[port.T], name: str, namespace: str = "") -> port.T:
        if self.is_away:
            raise AWAY
        return await self.inner.get(kind, name, namespace)

    async def create(self, item: port.T) -> port.T:
        self.attempts += 1
        if self.is_away:
            raise AWAY
        made = await self.inner.create(item)
        if self.loses_answers:
            self.loses_answers = False
            raise AWAY
        return made

    async def events(self) -> list[core.Event]:
        found = (await self.inner.list(core.Event)).items
        return sorted(found, key=lambda event: event.first_timestamp or "")

    async def reasons(self) -> list[str]:
        return [
            step.message
            for step in await tracerecorder.list_steps(self.inner, core.ObjectReference(kind="Node", name=NODE))
        ]


def change(number: int, *, is_healthy: bool = False) -> health.Change:
    return health.Change(
        uuid=GPUUUID(f"GPU-{number}"), is_healthy=is_healthy, reason="XID79", message=f"fault {number}"
    )


@contextlib.asynccontextmanager
async def writing(store: Moody) -> AsyncIterator[nodeevents.NodeEvents]:
    one = nodeevents.NodeEvents(NODE, store)  # type: ignore[arg-type]  # delegates the rest
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(one.run())
        yield one
        task.cancel()


def test_a_fault_is_a_warning_about_the_node_by_name_and_uid() -> None:
    async def scenario() -> None:
        store = Moody()
        node = await store.inner.create(core.Node(metadata=meta.ObjectMeta(name=NODE)))
        async with writing(store) as one:
            one.health_changed(change(1))
            await asyncio.sleep(1)
        (event,) = await store.events()
        assert (event.metadata.namespace, event.type, event.count) == ("default", "Warning", 1)
        assert (event.reason, event.message) == ("DeviceUnhealthy", "GPU-1 is not offered: fault 1")
        about = event.involved_object
        assert (about.kind, about.name, about.namespace, about.uid) == ("Node", NODE, "", node.metadata.uid)
        assert event.source.host == NODE

    virtualtime.run(scenario(), moment_s=0)


def test_steps_before_the_node_is_there_go_by_its_name() -> None:
    async def scenario() -> None:
        store = Moody()
        async with writing(store) as one:
            one.health_changed(change(1))
            await asyncio.sleep(1)
            await store.inner.create(core.Node(metadata=meta.ObjectMeta(name=NODE)))
            one.health_changed(change(2))
            await asyncio.sleep(1)
        assert [bool(event.involved_object.uid) for event in await store.events()] == [False, True]

    virtualtime.run(scenario(), moment_s=0)


def test_a_store_away_for_minutes_loses_nothing_and_is_not_stormed() -> None:
    async def scenario() -> None:
        store = Moody()
        store.is_away = True
        with capture_logs():
            async with writing(store) as one:
                for number in range(50):
                    one.health_changed(change(number))
                await asyncio.sleep(300)
                assert store.attempts < 30
                store.is_away = False
                await asyncio.sleep(31)
        messages = [event.message for event in await store.events()]
        assert messages == [f"GPU-{number} is not offered: fault {number}" for number in range(50)]

    virtualtime.run(scenario(), moment_s=0)


def test_a_step_whose_answer_was_lost_is_there_once() -> None:
    async def scenario() -> None:
        store = Moody()
        store.loses_answers = True
        with capture_logs():
            async with writing(store) as one:
                one.health_changed(change(1))
                await asyncio.sleep(60)
        assert len(await store.events()) == 1
        assert store.attempts == 2

    virtualtime.run(scenario(), moment_s=0)


def test_only_beyond_the_limit_the_oldest_are_let_go_and_said_to_be() -> None:
    async def scenario() -> None:
        store = Moody()
        with capture_logs() as logs:
            async with writing(store) as one:
                for number in range(nodeevents.LIMIT + 2):  # before the writer has its turn
                    one.health_changed(change(number))
                await asyncio.sleep(1)
        assert [entry["error"] for entry in logs if entry["log_level"] == "warning"] == [
            f"GPU-{number} is not offered: fault {number}" for number in range(2)
        ]
        assert len(await store.events()) == nodeevents.LIMIT

    virtualtime.run(scenario(), moment_s=0)


def test_the_same_machine_is_told_once() -> None:
    async def scenario() -> None:
        store = Moody()
        gpu = GPU(uuid=GPUUUID("GPU-0"), index=0, minor=0, pci_bus_id="0000:01:00.0", name="Tesla T4", memory_bytes=1)
        found = Inventory(gpus=(gpu,), drivers=(Driver(vendor=Vendor.NVIDIA, version="550"),))
        async with writing(store) as one:
            one.inventory_seen(found)
            one.inventory_seen(found)
            one.inventory_seen(Inventory())
            await asyncio.sleep(1)
        assert await store.reasons() == ["1 x Tesla T4; nvidia driver 550", "no GPU; no driver"]

    virtualtime.run(scenario(), moment_s=0)
