"""The inventory loop: it publishes faults at once, scans for ever, and one lost GPU or driver hides no other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from fairlead import errors
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPU, Driver, EventKind, GPUEvent, GPUHealth, Inventory, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID
from fairlead.node.inventory import health, latest, monitor
from fairlead.plan.gpu import health as rules
from fairlead.plan.gpu.snapshot import Snapshot
from tests import gpus

PATIENCE_S = 50.0
POLICY = rules.Policy(hold_s=0.01, settle_s=0.0, persist_s=0.01)
DRIVER = Driver(vendor=Vendor.NVIDIA, version="550.163.01")


def gpu(index: int, temperature_c: int | None = None) -> GPU:
    return gpus.gpu(index, health=GPUHealth(temperature_c=temperature_c))


def lost(index: int) -> UnreadableGPU:
    return UnreadableGPU(index=index, pci_bus_id=None, uuid=GPUUUID(f"GPU-{index}"), reason="Lost", message="gone")


TWO = Inventory(gpus=(gpu(0), gpu(1)), drivers=(DRIVER,))
NO_DRIVER = errors.Unavailable("driver not loaded", reason="DriverNotLoaded", hint="modprobe nvidia")


class ScriptedSilicon:
    """Answers scans from a variable and events from a queue."""

    def __init__(self, answer: Inventory | errors.Unavailable) -> None:
        self.answer = answer
        self.scans: latest.Latest[int] = latest.Latest(0)
        self.events: asyncio.Queue[GPUEvent] = asyncio.Queue()
        self.gate = asyncio.Event()
        self.gate.set()

    async def scan(self) -> Inventory:
        answer = self.answer
        self.scans.set(self.scans.value + 1)
        await self.gate.wait()
        if isinstance(answer, errors.Unavailable):
            raise answer
        return answer

    async def scan_driver(self) -> tuple[DriverFiles, ...]:
        return (DriverFiles(vendor=Vendor.NVIDIA, version="550.163.01"),)

    async def watch_events(self) -> AsyncIterator[GPUEvent]:
        while True:
            yield await self.events.get()

    async def close(self) -> None:
        return


@contextlib.asynccontextmanager
async def watching(silicon: ScriptedSilicon, *, rescan_s: float = 60.0) -> AsyncIterator[monitor.InventoryMonitor]:
    changes: list[health.Change] = []
    watch = monitor.InventoryMonitor(silicon, rescan_s=rescan_s, policy=POLICY, on_change=changes.append)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(watch.run())
        try:
            yield watch
        finally:
            task.cancel()


async def until(watch: monitor.InventoryMonitor, condition: Callable[[Snapshot], bool]) -> Snapshot:
    async with asyncio.timeout(PATIENCE_S):
        async for snapshot in watch.snapshots.changes():
            if condition(snapshot):
                return snapshot
    raise AssertionError


def state(snapshot: Snapshot, index: int) -> tuple[bool, str]:
    verdict = snapshot.verdicts.get(GPUUUID(f"GPU-{index}"), rules.Verdict())
    return verdict.is_healthy, verdict.reason


@pytest.fixture(autouse=True)
def no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "SCAN_GAP_S", 0.0)
    monkeypatch.setattr(monitor, "FIRST_RETRY_S", 0.01)


async def test_the_first_scan_is_published_with_its_drivers() -> None:
    async with watching(ScriptedSilicon(TWO)) as watch:
        snapshot = await until(watch, lambda s: s.is_scanned)
        assert (snapshot.inventory, snapshot.problem) == (TWO, "")
        assert [driver.version for driver in snapshot.drivers] == ["550.163.01"]


async def test_a_fault_is_published_before_any_scan_could_answer() -> None:
    silicon = ScriptedSilicon(TWO)
    async with watching(silicon) as watch:
        await until(watch, lambda s: s.is_scanned)
        silicon.gate.clear()
        await silicon.events.put(GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-1"), xid=79))
        snapshot = await until(watch, lambda s: not state(s, 1)[0])
        assert (state(snapshot, 0), state(snapshot, 1)) == ((True, ""), (False, "XID79"))


async def test_a_scan_that_began_before_a_fault_does_not_undo_it() -> None:
    silicon = ScriptedSilicon(TWO)
    async with watching(silicon) as watch:
        await until(watch, lambda s: s.is_scanned)
        silicon.gate.clear()
        seen = silicon.scans.version
        watch.ask_scan()
        await silicon.scans.wait(seen)
        await silicon.events.put(GPUEvent(kind=EventKind.LOST, uuid=GPUUUID("GPU-1")))
        await until(watch, lambda s: not state(s, 1)[0])
        silicon.answer = Inventory(gpus=(gpu(0),), unreadable=(lost(1),), drivers=(DRIVER,))
        silicon.gate.set()
        snapshot = await until(watch, lambda s: len(s.inventory.unreadable) == 1)
        assert snapshot.verdicts[GPUUUID("GPU-1")].state is rules.State.FAULTY
        assert snapshot.verdicts[GPUUUID("GPU-1")].hold_s == POLICY.hold_s


@pytest.mark.parametrize("kind", [EventKind.CHANGED, EventKind.RECOVERED])
async def test_an_event_brings_a_scan(kind: EventKind) -> None:
    silicon = ScriptedSilicon(TWO)
    async with watching(silicon) as watch:
        await until(watch, lambda s: s.is_scanned)
        silicon.answer = Inventory(gpus=(gpu(0), gpu(1), gpu(2)), drivers=(DRIVER,))
        await silicon.events.put(GPUEvent(kind=kind, uuid=None))
        assert len((await until(watch, lambda s: len(s.inventory.gpus) == 3)).known) == 3


async def test_the_timer_brings_a_scan() -> None:
    silicon = ScriptedSilicon(TWO)
    async with watching(silicon, rescan_s=0.01) as watch:
        await until(watch, lambda s: s.is_scanned)
        silicon.answer = Inventory(gpus=(gpu(0),), drivers=(DRIVER,))
        snapshot = await until(watch, lambda s: len(s.inventory.gpus) == 1)
        assert set(snapshot.known) == {"GPU-0"}


async def test_a_lost_gpu_is_remembered_and_comes_back_after_its_hold_without_being_asked() -> None:
    silicon = ScriptedSilicon(Inventory(gpus=(gpu(0),), unreadable=(lost(1),), drivers=(DRIVER,)))
    async with watching(silicon) as watch:
        snapshot = await until(watch, lambda s: s.is_scanned)
        assert (state(snapshot, 0), state(snapshot, 1)) == ((True, ""), (False, "Lost"))
        silicon.answer = TWO
        watch.ask_scan()
        await until(watch, lambda s: state(s, 1) == (True, ""))


async def test_no_driver_is_asked_for_again_until_there_is_one() -> None:
    silicon = ScriptedSilicon(NO_DRIVER)
    async with watching(silicon, rescan_s=0.05) as watch:
        snapshot = await until(watch, lambda s: s.is_scanned)
        assert "driver not loaded (modprobe nvidia)" in snapshot.problem
        async with asyncio.timeout(PATIENCE_S):
            while silicon.scans.value < 3:
                await silicon.scans.wait(silicon.scans.version)
        silicon.answer = TWO
        assert (await until(watch, lambda s: len(s.inventory.gpus) == 2)).problem == ""


async def test_a_driver_that_stops_answering_leaves_its_gpus_listed_with_the_reason() -> None:
    silicon = ScriptedSilicon(TWO)
    async with watching(silicon) as watch:
        await until(watch, lambda s: s.is_scanned)
        silicon.answer = NO_DRIVER
        watch.ask_scan()
        snapshot = await until(watch, lambda s: bool(s.problem))
        assert [gone.uuid for gone in snapshot.inventory.unreadable] == ["GPU-0", "GPU-1"]
        assert (state(snapshot, 0), set(snapshot.known)) == ((False, "DriverNotLoaded"), {"GPU-0", "GPU-1"})


async def test_a_storm_of_events_is_few_scans() -> None:
    silicon = ScriptedSilicon(TWO)
    async with watching(silicon) as watch:
        await until(watch, lambda s: s.is_scanned)
        before = silicon.scans.value
        for _ in range(500):
            silicon.events.put_nowait(GPUEvent(kind=EventKind.XID, uuid=GPUUUID("GPU-0"), xid=13))
        silicon.events.put_nowait(GPUEvent(kind=EventKind.LOST, uuid=GPUUUID("GPU-0")))
        await until(watch, lambda s: not state(s, 0)[0])
        assert silicon.scans.value - before < 50


def test_changes_are_told_once_each_way_with_the_cause() -> None:
    tracker = health.HealthTracker(POLICY)
    event = GPUEvent(kind=EventKind.LOST, uuid=GPUUUID("GPU-0"))
    [out] = tracker.observe_event(event, now=1.0)
    assert (out.is_healthy, out.reason, tracker.observe_event(event, now=2.0)) == (False, "Lost", ())
    assert tracker.observe_inventory(TWO, now=3.0) == ()
    [back] = tracker.observe_inventory(TWO, now=4.0)
    assert (back.is_healthy, back.reason) == (True, "Lost")


def test_a_gpu_that_left_the_machine_is_forgotten() -> None:
    tracker = health.HealthTracker(POLICY)
    tracker.observe_event(GPUEvent(kind=EventKind.LOST, uuid=GPUUUID("GPU-0")), now=1.0)
    tracker.observe_inventory(Inventory(gpus=(gpu(1),)), now=2.0)
    assert set(tracker.verdicts()) == {"GPU-1"}


def test_readings_do_not_count_as_other_hardware() -> None:
    warm = Inventory(gpus=(gpu(0, temperature_c=60),))
    cold = Inventory(gpus=(gpu(0, temperature_c=30),))
    assert monitor.without_readings(warm) == monitor.without_readings(cold)
    assert monitor.without_readings(warm) != monitor.without_readings(TWO)


async def test_latest_skips_to_the_newest_and_tells_equal_values_apart_from_new_ones() -> None:
    value: latest.Latest[int] = latest.Latest(0)
    seen = value.changes()
    assert await anext(seen) == 0
    assert (value.set(0), value.set(1), value.set(2)) == (False, True, True)
    assert (await anext(seen), value.version) == (2, 2)
