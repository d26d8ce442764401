"""Scans this node's GPUs and listens for events, and publishes immutable snapshots.

A fault that the driver reports is published at once, without a scan; then, as after every event, a scan follows. Scans
also run on a timer, sooner while a GPU is recovering, and with back-off for as long as no driver answers: a node
without GPUs today may have them after `modprobe`. When a driver that answered stops answering, its GPUs stay listed as
unreadable. Readers take `snapshots`; the monitor never waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Final

from fairlead import errors, telemetry
from fairlead.backoff import Backoff
from fairlead.kernel import heap
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import GPUEvent, GPUHealth, Inventory, UnreadableGPU
from fairlead.node.inventory import health, healthmemory, latest
from fairlead.plan.gpu import health as rules
from fairlead.plan.gpu.snapshot import Snapshot
from fairlead.silicon import port

FIRST_RETRY_S: Final = 1.0
_HANGING_S: Final = 300.0
"""A scan that takes longer hangs: each of its calls has its own, much shorter limit."""
STORM_S, STORM_EVENTS = 0.1, 64
"""Within so much time so many events are judged at once; each takes the loop for a tenth of a millisecond."""
SCAN_GAP_S: Final = 0.2
"""Least time between two scans, however many events ask for one."""


class InventoryMonitor:
    """Keeps `snapshots` true."""

    def __init__(
        self,
        silicon: port.Silicon,
        *,
        rescan_s: float,
        policy: rules.Policy = rules.DEFAULT,
        clock: Callable[[], float] = time.monotonic,
        on_change: Callable[[health.Change], None] | None = None,
        on_event: Callable[[GPUEvent], None] = lambda _: None,
        turned: Callable[[float], None] = lambda _: None,
        memory: healthmemory.HealthMemory | None = None,
    ) -> None:
        """Prepare; nothing is read before `run`.

        Args:    rescan_s: longest time between scans.   clock: monotonic seconds.
                 on_change: called with every GPU that begins or ceases to be offered, right after it is published.
                 on_event: called with every event.
                 turned: called before each scan with the seconds within which the next one begins.
                 memory: keeps what only a reset ends over restarts; read here.
        """
        self.snapshots: latest.Latest[Snapshot] = latest.Latest(Snapshot())
        self._silicon = silicon
        self._rescan_s = rescan_s
        self._clock = clock
        self._on_change = on_change
        self._on_event = on_event
        self._turned = turned
        self._memory = memory
        self.beside: Callable[[], Awaitable[tuple[DriverFiles, ...]]] | None = None
        """Reads, with each scan, what no vendor's driver knows of: GPUs that are passed through."""
        self._tracker = health.HealthTracker(policy, remembered=memory.load(now=clock()) if memory else {})
        self._asked, self._hurried = asyncio.Event(), asyncio.Event()

    def judge_by(self, policy: rules.Policy) -> None:
        """Take other health rules, from now on."""
        self._publish(self.snapshots.value, self._tracker.judge_by(policy, now=self._clock()))
        self.ask_scan()

    def publish_beside(self, beside: tuple[DriverFiles, ...]) -> None:
        """Publish at once what is known of GPUs that are passed through, without a scan."""
        before = self.snapshots.value
        if before.is_scanned:
            self._publish(dataclasses.replace(before, drivers=(*_of_vendors(before.drivers), *beside)), ())

    def ask_scan(self, *, is_urgent: bool = False) -> None:
        """Have a scan run soon. Args: is_urgent: at once, as a call waits for it; else one gap after the last."""
        if is_urgent:
            self._hurried.set()
        self._asked.set()

    async def run(self) -> None:
        """Scan and listen for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen())
            group.create_task(self._scan_for_ever())
            if self._memory is not None:
                group.create_task(self._memory.run())

    async def _listen(self) -> None:
        """Judge every event; in a storm only so many a second, while the source coalesces what waits."""
        loop = asyncio.get_running_loop()
        begun, count = loop.time(), 0
        async for event in self._silicon.watch_events():
            if loop.time() - begun >= STORM_S:
                begun, count = loop.time(), 0
            elif (count := count + 1) > STORM_EVENTS:
                await asyncio.sleep(begun + STORM_S - loop.time())
            changes = self._tracker.observe_event(event, now=self._clock())
            self._on_event(event)
            self._publish(self.snapshots.value, changes)
            telemetry.log.info("gpu event", gpu=event.uuid, reason=event.kind.value, state=event.xid)
            self.ask_scan()

    async def _scan_for_ever(self) -> None:
        retries = Backoff(first_s=FIRST_RETRY_S, last_s=max(self._rescan_s, FIRST_RETRY_S), jitter=0)
        while True:
            self._asked.clear()
            self._hurried.clear()
            self._turned(self._rescan_s + _HANGING_S)
            is_answered = await self._scan()
            if is_answered:
                retries.reset()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SCAN_GAP_S):
                    await self._hurried.wait()
            await self._wait_s(self._rescan_s if is_answered else retries.next())

    async def _wait_s(self, longest_s: float) -> None:
        """Wait until asked, or until time alone can change something.

        Between two looks an event may put a verdict on a shorter clock; events ask, so this wait ends then.
        """
        recheck_s = self._tracker.recheck_s(now=self._clock())
        wait_s = longest_s if recheck_s is None else min(longest_s, recheck_s)
        try:
            async with asyncio.timeout(wait_s):
                await self._asked.wait()
        except TimeoutError:
            return

    async def _scan(self) -> bool:
        """Scan once and publish; returns whether a driver answered."""
        before = self.snapshots.value
        now = self._clock()
        try:
            with telemetry.timed("inventory scanned"):
                inventory = await self._silicon.scan()
                drivers = await self._silicon.scan_driver()
        except errors.Unavailable as error:
            drivers = (*_of_vendors(before.drivers), *await self._scan_beside())
            self._miss(error, dataclasses.replace(before, drivers=drivers), now)
            return False
        # Last, and published without a wait: what `publish_beside` has published meanwhile is in it.
        beside = await self._scan_beside()
        gone = {gpu.uuid for gpu in inventory.unreadable}
        earlier = {uuid: gpu for uuid, gpu in before.known.items() if uuid in gone}
        known = {**earlier, **{gpu.uuid: gpu for gpu in inventory.gpus}}
        changes = self._tracker.observe_inventory(inventory, now=now)
        snapshot = Snapshot(inventory=inventory, drivers=(*drivers, *beside), known=known, is_scanned=True)
        self._publish(snapshot, changes)
        if not before.is_scanned:
            heap.trim()  # a start without cached bytecode leaves 12 MB free that the allocator would keep
        return bool(inventory.drivers or beside)

    async def _scan_beside(self) -> tuple[DriverFiles, ...]:
        return await self.beside() if self.beside is not None else ()

    def _miss(self, error: errors.Unavailable, before: Snapshot, now: float) -> None:
        message, reason = errors.sentence(error), error.reason
        gone = tuple(
            UnreadableGPU(index=gpu.index, pci_bus_id=gpu.pci_bus_id, uuid=gpu.uuid, reason=reason, message=message)
            for gpu in before.known.values()
        )
        inventory = dataclasses.replace(before.inventory, gpus=(), links=(), unreadable=gone)
        changes = self._tracker.observe_inventory(inventory, now=now)
        if message != before.problem:
            telemetry.log.warning("driver does not answer", reason=reason, error=message)
        snapshot = dataclasses.replace(before, inventory=inventory, is_scanned=True, problem=message)
        self._publish(snapshot, changes)

    def _publish(self, snapshot: Snapshot, changes: tuple[health.Change, ...]) -> None:
        verdicts, device_verdicts = self._tracker.verdicts(), self._tracker.device_verdicts()
        self.snapshots.set(dataclasses.replace(snapshot, verdicts=verdicts, device_verdicts=device_verdicts))
        if self._memory is not None:
            self._memory.keep(self._tracker.latched())
        for change in changes:
            log = telemetry.log.info if change.is_healthy else telemetry.log.warning
            log("gpu health changed", gpu=change.uuid, state=change.is_healthy, reason=change.reason)
            if self._on_change is not None:
                self._on_change(change)


def _of_vendors(drivers: Iterable[DriverFiles]) -> Iterator[DriverFiles]:
    """Yield what vendors' drivers said, without what was read beside them."""
    return (one for one in drivers if not one.passthrough and not one.switches)


def without_readings(inventory: Inventory) -> Inventory:
    """Return the inventory without what changes from second to second: equal values mean the same hardware."""
    return dataclasses.replace(
        inventory, gpus=tuple(dataclasses.replace(gpu, health=GPUHealth()) for gpu in inventory.gpus)
    )
