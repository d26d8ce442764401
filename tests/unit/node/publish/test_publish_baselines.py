"""FirmwareBaselines of a node: what was seen and decided there, as objects that decide nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec

from fairlead.node.inventory import latest
from fairlead.node.lease import baselines as files
from fairlead.node.publish import baselines
from fairlead.plan.lease import baseline, baselineobject
from fairlead.plan.lease.baseline import Baseline, Learned
from fairlead.store.embedded import memory
from fairlead.wire.fairlead.firmwarebaseline import FirmwareBaseline
from fairlead.wire.kubernetes import core, meta

BOARD = "233010de-900"
SEEN = Baseline(board=BOARD, vbios=("96",), inforom=("G520",), link_width=16, ecc=True)


class World:
    """A store, a Node and the files beside a ledger."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = memory.MemoryStore(), folder
        self.node: latest.Latest[core.Node | None] = latest.Latest(None)
        self.learn(SEEN)

    def learn(self, *seen: Baseline) -> None:
        files.write_learned(self.folder, Learned(boards={one.board: one for one in seen}))

    def approve(self, who: str, at: float) -> None:
        files.decide(self.folder, lambda known, now: baseline.approve(now, known, BOARD, by=who, at=at))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.node.set(await self.store.create(core.Node(metadata=meta.ObjectMeta(name="n1"))))
        keeper = baselines.Baselines(self.store, self.folder, self.node, look_s=0.01)
        async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
            running = tasks.create_task(keeper.run())
            yield
            running.cancel()

    async def until(self, wanted: Callable[[list[FirmwareBaseline]], bool]) -> list[FirmwareBaseline]:
        if wanted(found := await self.shown()):
            return found
        async for _ in self.store.watch(FirmwareBaseline):
            if wanted(found := await self.shown()):
                return found
        raise AssertionError("the watch ended")

    async def shown(self) -> list[FirmwareBaseline]:
        return list((await self.store.list(FirmwareBaseline)).items)


async def test_each_step_of_an_approval_is_seen_and_what_is_found_later_is_told_apart(tmp_path: Path) -> None:
    world = World(tmp_path)
    async with world.running():
        (one,) = await world.until(lambda found: [item.status.state for item in found] == ["Seen"])
        assert (one.spec.node_name, one.spec.board) == ("n1", BOARD)
        assert (one.status.vbios, one.status.unapproved) == ((), ("96", "G520"))
        world.approve("ann", 10.0)
        (one,) = await world.until(lambda found: [item.status.state for item in found] == ["Proposed"])
        assert (one.status.proposed_by, one.status.approvers, one.status.approvals) == ("ann", (), 2)
        world.approve("bob", 20.0)
        (one,) = await world.until(lambda found: [item.status.state for item in found] == ["Approved"])
        assert (one.status.approved_by, one.status.approved_at) == ("ann,bob", "1970-01-01T00:00:20.000000Z")
        assert (one.status.vbios, one.status.unapproved, one.status.proposed_by) == (("96",), (), "")
        world.learn(dataclasses.replace(SEEN, vbios=("96", "97")))
        (one,) = await world.until(lambda found: any(item.status.unapproved for item in found))
        assert (one.status.state, one.status.vbios, one.status.unapproved_versions) == ("Approved", ("96",), "97")
        world.approve("bob", 30.0)
        (one,) = await world.until(lambda found: any(item.status.proposed_by for item in found))
        assert (one.status.state, one.status.approved_by, one.status.proposed_by) == ("Approved", "ann,bob", "bob")


async def test_an_object_that_says_otherwise_changes_nothing_and_one_of_another_life_goes(tmp_path: Path) -> None:
    world = World(tmp_path)
    old = core.Node(metadata=meta.ObjectMeta(name="n1"))
    stale = baselineobject.show(old, baseline.standing("gone", Learned(), baseline.Decided()))
    lying = baselineobject.show(old, baseline.standing(BOARD, Learned(), baseline.Decided()))
    for one in (stale, lying):
        about = msgspec.structs.replace(one.metadata, owner_references=())
        made = await world.store.create(msgspec.structs.replace(one, metadata=about))
        told = msgspec.structs.replace(one.status, state="Approved", approvers=("mallory",))
        await world.store.update_status(msgspec.structs.replace(made, status=told))
    async with world.running():
        (one,) = await world.until(lambda found: [item.status.state for item in found] == ["Seen"])
        assert one.status.approvers == ()
        assert [owner.kind for owner in one.metadata.owner_references] == ["Node"]
    assert files.read_decided(tmp_path) == baseline.Decided()


def test_what_hardware_calls_a_board_is_no_part_of_a_name() -> None:
    name = baselineobject.object_name("10de 2330/../é" * 50, "n" * 253)
    assert len(name) <= 253
    assert set(name) <= set("n.0123456789abcdef")
    assert name != baselineobject.object_name("10de", "n" * 253)
