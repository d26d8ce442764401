"""GPULease objects of a whole agent with its ledger: what a cluster reads of who had which GPU."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead import errors, settings
from fairlead.node.lease import ledgerfile
from fairlead.plan.lease.row import Row, State
from fairlead.store import port
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes import core, gpulease, meta
from fairlead.wire.kubernetes.gpulease import GPULease
from tests.contract import test_agent_contract as bench

PATIENCE_S = 30


@pytest.fixture
def home_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


class Away(MemoryStore):
    """A store that takes no GPULease while it is away."""

    is_away = False

    async def create(self, item: port.T) -> port.T:
        if self.is_away and isinstance(item, GPULease):
            raise errors.Unavailable("connection refused", reason="Refused")
        return await super().create(item)


class Home(bench.Home):
    """One machine whose agent keeps a ledger."""

    ledger = "on"

    def __init__(self, root: Path, count: int = 2) -> None:
        super().__init__(root, count)
        self.away = self.store = Away()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.kubelet(), self.agent():
            await self.until_capacity(2, 2)
            yield

    async def leases(self) -> dict[str, GPULease]:
        return {one.metadata.name: one for one in (await self.store.list(GPULease)).items}

    async def until(self, name: str, condition: Callable[[GPULease], bool]) -> GPULease:
        async with asyncio.timeout(PATIENCE_S):
            async for change in self.store.watch(GPULease):
                if change.object.metadata.name == name and condition(change.object):
                    return change.object
        raise AssertionError

    async def until_true(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():  # noqa: ASYNC110  (a file of another thread)
                await asyncio.sleep(0.05)

    async def until_state(self, name: str, state: str) -> GPULease:
        return await self.until(name, lambda one: one.status.state == state)


async def test_a_possession_is_an_object_from_its_allocation_to_the_verification_after_it(home_folder: Path) -> None:
    home = Home(home_folder)
    await home.store.create(
        core.Pod(metadata=meta.ObjectMeta(name="train", namespace="team"), spec=core.PodSpec(node_name="node-1"))
    )
    pod = await home.store.get(core.Pod, "train", "team")
    async with home.running():
        (gpu,) = await home.start("train", 1)
        (name,) = [f"{gpu.lower()}-{row.lease}" for row in _rows(home).values() if row.key == gpu]
        held = await home.until(name, lambda one: one.status.held_by == "team/train")
        assert (held.status.state, held.spec.node_name, held.spec.gpu) == (gpulease.HELD, "node-1", gpu)
        (holder,) = held.status.holders
        assert (holder.container, holder.resource, holder.devices) == ("main", "nvidia.com/gpu", (gpu,))
        assert holder.pod_uid == pod.metadata.uid
        await home.store.delete(core.Pod, "train", "team", grace_s=0)
        await home.end("train")
        done = await home.until_state(name, gpulease.VERIFIED)
        times = (done.spec.held_at, done.status.released_at, done.status.ended_at, done.status.verified_at)
        assert list(times) == sorted(times)
        assert done.status.held_by == "team/train"
        assert done.status.holders[0].pod_uid == pod.metadata.uid
        assert done.spec == held.spec


async def test_what_happened_while_the_store_or_the_agent_was_away_is_told_afterwards(home_folder: Path) -> None:
    home = Home(home_folder)
    async with home.running():
        home.away.is_away = True
        (gpu,) = await home.start("first", 1)
        await home.until_true(lambda: any(claim.is_seen for claim in _rows(home)[gpu].claims))
        await home.end("first")
        await home.until_true(lambda: _rows(home)[gpu].state is State.FREE)
        assert await home.leases() == {}
    home.away.is_away = False
    async with home.agent():
        found = await home.until_state(f"{gpu.lower()}-{_rows(home)[gpu].lease}", gpulease.VERIFIED)
        assert found.status.held_by == "team/first"


async def test_a_lease_that_the_ledger_does_not_know_is_lost_and_its_name_is_nobodys(home_folder: Path) -> None:
    home = Home(home_folder)
    spec = gpulease.GPULeaseSpec(
        node_name="node-1", gpu="GPU-0", gpu_device="gpu-0", epoch=1, held_at="2020-01-01T00:00:00.000000Z"
    )
    for epoch in range(1, 20):  # whichever epoch comes next is taken
        name = f"gpu-0-{epoch}"
        one = GPULease(metadata=meta.ObjectMeta(name=name), spec=msgspec.structs.replace(spec, epoch=epoch))
        made = await home.store.create(one)
        status = gpulease.GPULeaseStatus(state=gpulease.HELD, held_by="team/before")
        await home.store.update_status(msgspec.structs.replace(made, status=status))
    other = GPULease(metadata=meta.ObjectMeta(name="far"), spec=msgspec.structs.replace(spec, node_name="node-2"))
    await home.store.create(other)
    async with home.running():
        lost = await home.until_state("gpu-0-1", gpulease.LOST)
        assert (lost.status.reason, lost.status.held_by) == ("LedgerLost", "team/before")
        await home.start("train", 2)
        async with asyncio.timeout(PATIENCE_S):
            async for change in home.store.watch(GPULease):
                name = change.object.metadata.name
                if name.startswith("gpu-0-") and name.count("-") == 3:
                    break
        assert (await home.store.get(GPULease, "far")).status.state == ""


async def test_leases_are_kept_so_long_after_their_end_and_no_longer(home_folder: Path) -> None:
    home = Home(home_folder)
    home.settings = dataclasses.replace(home.settings, lease=settings.LeaseSettings(ledger="on", keep_days=1))
    for name, age_s in (("old", 90_000), ("new", 80_000)):
        spec = gpulease.GPULeaseSpec(node_name="node-1", gpu="GPU-9", gpu_device="gpu-9", epoch=1, held_at="")
        made = await home.store.create(GPULease(metadata=meta.ObjectMeta(name=name), spec=spec))
        ended = meta.emit_time(time.time() - age_s)
        status = gpulease.GPULeaseStatus(state=gpulease.VERIFIED, ended_at=ended)
        await home.store.update_status(msgspec.structs.replace(made, status=status))
    async with home.running(), asyncio.timeout(PATIENCE_S):
        while (left := list(await home.leases())) != ["new"]:
            assert left == ["new", "old"]
            await asyncio.sleep(0.05)


def _rows(home: Home) -> dict[str, Row]:
    return dict(ledgerfile.read(home.settings.lease_folder / ledgerfile.NAME)[0])
