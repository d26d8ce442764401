"""A passed-through GPU that is lost is Unhealthy at the kubelet though no scan ends and no spec can be written."""

from __future__ import annotations

import asyncio
import functools
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fairlead import settings
from fairlead.kernel import uevent
from fairlead.node.cdi import specfiles
from fairlead.node.vfio import busevents
from fairlead.silicon.vfio import discovery
from tests.contract.test_agent_contract import NVIDIA
from tests.contract.test_published_daemonset import DaemonSet
from tests.unit.silicon.vfio import pcitree

_LOST = sorted(pcitree.HGX_MODULES)[3]


class World(DaemonSet):
    """Such a node, with a bus that says what a test has it say, and hands that can be held still."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(root, monkeypatch)
        self.settings = settings.override(self.settings, {"silicon.rescan_s": "600"})
        self.said: asyncio.Queue[uevent.UEvent] = asyncio.Queue()
        self.link = root / "sys/bus/pci/devices" / _LOST
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        monkeypatch.setattr(busevents, "BusEvents", functools.partial(busevents.BusEvents, watch=self._watch))
        scan, ensure = discovery.scan, specfiles.SpecFiles._ensure

        def held_scan(*args: Any, **more: Any) -> Any:
            self.may_go_on.wait(60)
            return scan(*args, **more)

        def held_ensure(specs: specfiles.SpecFiles, inventory: Any, drivers: Sequence[Any]) -> None:
            self.may_go_on.wait(60)
            ensure(specs, inventory, drivers)

        monkeypatch.setattr(discovery, "scan", held_scan)
        monkeypatch.setattr(specfiles.SpecFiles, "_ensure", held_ensure)

    async def _watch(self) -> AsyncIterator[uevent.UEvent]:
        while True:
            yield await self.said.get()

    def say(self, action: str) -> None:
        fields = {"SUBSYSTEM": "pci", "PCI_SLOT_NAME": _LOST}
        self.said.put_nowait(uevent.UEvent(action=action, path=f"/devices/{_LOST}", fields=fields))

    async def until_healthy(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.devices.capacity().get(NVIDIA) != (8, count):  # noqa: ASYNC110  (a plain value)
                await asyncio.sleep(0.005)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        made = World(Path(name), monkeypatch)
        try:
            yield made
        finally:
            made.may_go_on.set()


async def test_a_gpu_that_is_taken_out_waits_for_neither_scan_nor_file_and_comes_back(world: World) -> None:
    async with world.kubelet(), world.agent():
        await world.until_healthy(8)
        target = world.link.readlink()
        world.may_go_on.clear()
        world.link.unlink()
        world.say("remove")
        await world.until_healthy(7)
        assert not world.may_go_on.is_set()
        world.link.symlink_to(target)
        world.may_go_on.set()
        world.say("add")
        await world.until_healthy(8)


async def test_a_gpu_that_reads_as_ones_waits_for_neither_scan_nor_file_and_comes_back(world: World) -> None:
    async with world.kubelet(), world.agent():
        await world.until_healthy(8)
        config = world.link.resolve() / "config"
        readable = config.read_bytes()
        world.may_go_on.clear()
        config.write_bytes(b"\xff" * len(readable))
        await world.until_healthy(7)
        assert not world.may_go_on.is_set()
        config.write_bytes(readable)
        world.may_go_on.set()
        await world.until_healthy(8)
