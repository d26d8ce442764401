"""A GPU that answers with ones is told at once and has the node scanned, and so has one that answers again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest

from fairlead.node.vfio import answers, gpus

ONE, TWO = "0000:17:00.0", "0000:18:00.0"
SILENT = gpus.Loss.SILENT
HEAD, ONES = b"\xde\x10\x30\x23", b"\xff" * 4


class World:
    """Two functions of a made-up tree, and who is told of them."""

    def __init__(self, root: Path) -> None:
        self.folders = {one: root / "sys/bus/pci/devices" / one for one in (ONE, TWO)}
        for folder in self.folders.values():
            folder.mkdir(parents=True)
            (folder / "config").write_bytes(HEAD)
            (folder / "power_state").write_text("D0\n")
        self.scans = 0
        self.looks = 0
        self.told: list[tuple[dict[str, gpus.Loss], int]] = []
        self.made = answers.Answers(root, self.addresses, self.scan, every_s=0.001)
        self.made.lost = lambda losses: self.told.append((dict(losses), self.scans))

    def addresses(self) -> tuple[str, ...]:
        self.looks += 1
        return ONE, TWO

    def scan(self) -> None:
        self.scans += 1

    def say(self, address: str, head: bytes) -> None:
        fresh = self.folders[address] / "fresh"
        fresh.write_bytes(head)
        fresh.replace(self.folders[address] / "config")

    async def look(self, times: int = 10) -> None:
        """Wait until it was looked so often."""
        await until(lambda wanted=self.looks + times: self.looks >= wanted)  # type: ignore[misc]


async def until(seen: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not seen():  # noqa: ASYNC110  (what is waited for is a plain value)
            await asyncio.sleep(0.001)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    one = World(tmp_path)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(one.made.run())
        yield one
        task.cancel()


async def test_who_answers_is_not_scanned_for(world: World) -> None:
    await world.look()
    assert world.scans == 0


async def test_ones_are_scanned_for_once_and_so_is_the_way_back(world: World) -> None:
    world.say(ONE, ONES)
    await until(lambda: world.scans == 1)
    await world.look()
    assert world.scans == 1
    assert world.told == [({ONE: gpus.Loss.SILENT}, 0)], "once, and before the scan"
    world.say(ONE, HEAD)
    await until(lambda: world.scans == 2)
    await world.look()
    assert world.scans == 2


async def test_one_look_finds_a_function_silent_and_two_find_it_back() -> None:
    told = list[str]()
    made = answers.Answers(Path("/nowhere"), tuple, lambda: told.append("scan"))
    made.lost = told.extend
    for loss in (None, SILENT, None, SILENT, None, SILENT):
        made._judge({ONE: loss, TWO: None})
    assert told == [ONE, "scan"], "one that comes and goes is silent once"
    made._judge({ONE: None})
    made._judge({ONE: None})
    assert told == [ONE, "scan", "scan"]
    made._judge({ONE: SILENT, TWO: SILENT})
    assert told == [ONE, "scan", "scan", ONE, TWO, "scan"]


async def test_a_function_that_is_gone_from_the_bus_is_said_to_be(world: World) -> None:
    (world.folders[ONE] / "config").unlink()
    await until(lambda: world.scans == 1)
    assert world.told == [({ONE: gpus.Loss.REMOVED}, 0)]


async def test_a_function_that_is_looked_at_no_more_is_forgotten() -> None:
    told = list[str]()
    made = answers.Answers(Path("/nowhere"), tuple, lambda: None)
    made.lost = told.extend
    found: Mapping[str, gpus.Loss | None]
    for found in ({ONE: SILENT}, {TWO: None}, {ONE: SILENT}):
        made._judge(found)
    assert told == [ONE, ONE]


async def test_what_sleeps_in_d3cold_is_left_asleep(world: World) -> None:
    (world.folders[TWO] / "power_state").write_text("D3cold\n")
    world.say(TWO, ONES)
    await world.look()
    assert world.scans == 0


async def test_a_read_that_never_returns_costs_no_more_than_these_looks(world: World) -> None:
    (world.folders[TWO] / "power_state").unlink()
    os.mkfifo(world.folders[TWO] / "power_state")
    await world.look()  # a pipe in its place is not waited for
    world.say(ONE, ONES)
    await until(lambda: world.scans == 1)
