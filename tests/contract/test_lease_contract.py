"""Possession over real sockets and files: the whole agent with its ledger, below the embedded kubelet."""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.node.lease import ledgerfile, requestsocket
from fairlead.plan.lease.row import Row, State
from tests.contract.test_agent_contract import PATIENCE_S, Home


@pytest.fixture
def home_folder() -> Iterator[Path]:
    """A short path: a unix socket's has 107 bytes, and pytest's own folders nearly fill them."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


class LeaseHome(Home):
    """A machine whose kubelet says who holds what, and whose agent keeps a ledger."""

    def __init__(self, root: Path, count: int, *, ledger: str = "on") -> None:
        super().__init__(root, count)
        self.set_ledger(ledger)

    def set_ledger(self, value: str) -> None:
        self.settings = dataclasses.replace(self.settings, lease=settings.LeaseSettings(ledger=value))

    async def until_named(self, key: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not all(claim.is_seen for claim in self.row(key).claims):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def row(self, key: str) -> Row:
        path = self.settings.lease_folder / ledgerfile.NAME
        rows = ledgerfile.read(path)[0] if path.exists() else {}
        return rows.get(key, Row(key=key))

    async def until(self, key: str, state: State) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.row(key).state is not state:  # noqa: ASYNC110  (a file of another process, in effect)
                await asyncio.sleep(0.02)


async def test_pods_come_and_go_and_each_gpu_passes_through_the_ledger(home_folder: Path) -> None:
    home = LeaseHome(home_folder, 2)
    async with home.kubelet(), home.agent():
        await home.until_capacity(2, 2)
        first = await home.start("a", 2)
        assert {home.row(key).state for key in first} == {State.HELD}
        assert home.spec.exists()
        await home.end("a")
        assert await home.start("b", 2) == first
        for key in first:
            await home.until_named(key)
        await home.end("b")
        for key in first:
            await home.until(key, State.FREE)
        assert not home.spec.exists()


async def test_a_machine_that_upgrades_keeps_its_pods_and_gives_their_gpus_on_later(home_folder: Path) -> None:
    home = LeaseHome(home_folder, 1, ledger="off")
    async with home.kubelet():
        async with home.agent():
            await home.until_capacity(1, 1)
            (key,) = await home.start("old", 1)
        home.set_ledger("on")
        async with home.agent():
            await home.until(key, State.HELD)
            assert [claim.pod for claim in home.row(key).claims] == ["old"]
            await home.until_capacity(1, 1)
            await home.end("old")
            assert await home.start("new", 1) == (key,)
        home.set_ledger("off")
        async with home.agent():
            await home.until_capacity(1, 1)
            assert list(home.settings.lease_folder.glob("ledger.db.off-*"))


async def test_an_agent_that_begins_again_finds_its_pods_held(home_folder: Path) -> None:
    home = LeaseHome(home_folder, 2)
    async with home.kubelet():
        async with home.agent():
            await home.until_capacity(2, 2)
            (key,) = await home.start("a", 1)
            lease = home.row(key).lease
        async with home.agent():
            await home.until_capacity(2, 2)
            assert (home.row(key).state, home.row(key).lease) == (State.HELD, lease)
            (other,) = await home.start("b", 1)
            assert other != key


async def test_a_quarantined_gpu_is_unhealthy_at_the_kubelet_until_it_is_released(home_folder: Path) -> None:
    home = LeaseHome(home_folder, 1)
    async with home.kubelet(), home.agent():
        await home.until_capacity(1, 1)
        (key,) = await home.start("a", 1)
        await home.until_named(key)
        await home.end("a")
        await home.until(key, State.FREE)
        request = requestsocket.Request(verb="quarantine", gpu=key, by="root", why="smells")
        await asyncio.to_thread(requestsocket.ask, home.settings.lease_folder, request)
        await home.until_capacity(1, 0)
        told = await home.until_step(lambda step: step.reason == "GPUQuarantined")
        assert (told.is_warning, told.message) == (True, f"{key} is in quarantine by root: smells")
        assert home.reports[-1].leases() == {key: "Quarantined"}
        with pytest.raises(errors.Insufficient):
            await home.start("b", 1)
        await asyncio.to_thread(
            requestsocket.ask, home.settings.lease_folder, requestsocket.Request(verb="release", gpu=key, by="root")
        )
        await home.until_capacity(1, 1)
        assert await home.start("b", 1) == (key,)
