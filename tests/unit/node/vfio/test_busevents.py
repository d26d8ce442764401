"""What the bus says has the node scanned, and keeps functions back that have reported errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from fairlead import errors
from fairlead.kernel import uevent
from fairlead.node.vfio import busevents

_GPU = "0000:17:00.0"


def _pci(action: str, **fields: str) -> uevent.UEvent:
    return uevent.UEvent(
        action=action, path=f"/devices/{_GPU}", fields={"SUBSYSTEM": "pci", "PCI_SLOT_NAME": _GPU, **fields}
    )


async def _until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not seen():  # noqa: ASYNC110  (what is waited for is a plain value)
            await asyncio.sleep(0)


class World:
    """A bus that says what a test has it say."""

    def __init__(self) -> None:
        self.said: asyncio.Queue[uevent.UEvent | errors.Unavailable] = asyncio.Queue()
        self.scans = 0
        self.bus = busevents.BusEvents(self._scan, watch=self._watch, poll_s=0.01)

    def _scan(self) -> None:
        self.scans += 1

    async def _watch(self) -> AsyncIterator[uevent.UEvent]:
        while True:
            one = await self.said.get()
            if isinstance(one, errors.Unavailable):
                raise one
            yield one

    async def hear(self, *events: uevent.UEvent | errors.Unavailable) -> None:
        for event in events:
            self.said.put_nowait(event)
        await _until(self.said.empty)
        await asyncio.sleep(0)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    one = World()
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(one.bus.run())
        yield one
        task.cancel()


async def test_a_change_is_looked_at_at_once_and_again_when_it_has_settled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busevents, "_SETTLED_S", 0.05)
    await world.hear(_pci("unbind"), _pci("remove"))
    assert world.scans == 2
    await _until(lambda: world.scans == 3)
    await asyncio.sleep(0.1)
    assert world.scans == 3, "a burst settles once"


async def test_a_function_that_is_taken_off_the_bus_is_told_before_a_scan_and_nothing_else_is(world: World) -> None:
    told = list[tuple[str, int]]()
    world.bus.removed = lambda address: told.append((address, world.scans))
    other = uevent.UEvent(action="remove", path="/devices/x", fields={"SUBSYSTEM": "vfio-dev"})
    await world.hear(_pci("unbind"), _pci("add"), other, _pci("remove"))
    assert told == [(_GPU, 3)]
    assert world.scans == 4


@pytest.mark.parametrize(
    ("event", "is_told"), [(_pci("add"), True), (uevent.LOST, True), (_pci("bind"), False), (_pci("remove"), False)]
)
async def test_a_function_that_was_put_in_is_told_once_when_it_has_settled(
    world: World, monkeypatch: pytest.MonkeyPatch, event: uevent.UEvent, is_told: bool
) -> None:
    monkeypatch.setattr(busevents, "_SETTLED_S", 0.02)
    told = list[int]()
    world.bus.added = lambda: told.append(world.scans)
    await world.hear(event, _pci("change"))
    await _until(lambda: world.scans == 3)
    await world.hear(_pci("change"))
    await _until(lambda: world.scans == 5)
    assert told == ([2] if is_told else []), "before the scan that follows"


async def test_other_devices_concern_nobody_here(world: World) -> None:
    await world.hear(uevent.UEvent(action="add", path="/devices/x", fields={"SUBSYSTEM": "block"}))
    assert world.scans == 0


async def test_messages_that_were_lost_may_have_been_about_a_gpu(world: World) -> None:
    await world.hear(uevent.LOST)
    assert world.scans == 1


@pytest.mark.parametrize(
    ("ended", "is_over"),
    [
        (_pci("change", ERROR_EVENT="SUCCESSFUL_RECOVERY", DEVICE_ONLINE="1"), True),
        (_pci("change", ERROR_EVENT="FAILED_RECOVERY", DEVICE_ONLINE="0"), False),
        (_pci("remove"), True),
        (_pci("bind"), False),
    ],
)
async def test_an_error_keeps_a_function_back_until_it_is_over(
    world: World, ended: uevent.UEvent, is_over: bool
) -> None:
    await world.hear(_pci("change", ERROR_EVENT="BEGIN_RECOVERY", DEVICE_ONLINE="0"))
    assert "is recovering from (AER)" in world.bus.problem(_GPU)
    assert world.bus.problem("0000:18:00.0") == ""
    await world.hear(ended)
    assert (world.bus.problem(_GPU) == "") is is_over


async def test_an_error_that_stays_names_what_mends_it_and_ends_with_a_reset(world: World) -> None:
    await world.hear(_pci("change", ERROR_EVENT="FAILED_RECOVERY"))
    assert f"echo 1 > /sys/bus/pci/devices/{_GPU}/remove" in world.bus.problem(_GPU)
    before = world.scans
    world.bus.forget(_GPU)
    assert world.bus.problem(_GPU) == ""
    assert world.scans == before + 1


async def test_where_nothing_can_be_heard_the_node_is_scanned_every_few_seconds(world: World) -> None:
    denied = errors.Unavailable("cannot be heard", reason="UEventsDenied")
    await world.hear(denied, denied, denied)
    await _until(lambda: world.scans >= 2)


async def test_errors_of_very_many_functions_are_bounded(world: World) -> None:
    for number in range(1000):
        event = _pci("change", ERROR_EVENT="BEGIN_RECOVERY", PCI_SLOT_NAME=f"{number:04x}:00:00.0")
        await world.hear(event)
    assert sum(world.bus.problem(f"{number:04x}:00:00.0") != "" for number in range(1000)) == 256
