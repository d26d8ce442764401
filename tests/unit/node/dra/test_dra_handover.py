"""A driver that ends while another agent stands by: no call of a kubelet fails between the two."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from fairlead import errors
from fairlead.node.dra import driver, sockets, standby
from fairlead.node.dra.preparer import ClaimRef
from fairlead.node.inventory import latest
from fairlead.node.lease import gate
from fairlead.plan.dra.preparation import PreparedDevice
from fairlead.wire.kubelet import deviceplugin, draplugin

_DRIVER = "gpu.nvidia.com"
_CLAIM = draplugin.Claim(namespace="team", name="one", uid="u-1")


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name:  # a socket's path has 107 bytes
        yield Path(name)


class Ledger:
    """The preparer of an agent whose ledger is open or not."""

    def __init__(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.calls = list[str]()
        self.takes_s = 0.0

    async def prepare(self, ref: ClaimRef) -> tuple[tuple[PreparedDevice, tuple[str, ...]], ...]:
        await self._called(f"prepare {ref.uid}")
        return ()

    async def unprepare(self, ref: ClaimRef) -> None:
        await self._called(f"unprepare {ref.uid}")

    async def _called(self, what: str) -> None:
        if not self.is_open:
            raise errors.Unavailable("the ledger of this node is not open", reason=gate.NOT_OPEN)
        await asyncio.sleep(self.takes_s)
        self.calls.append(what)


@contextlib.asynccontextmanager
async def _serving(folder: Path, ledger: Ledger) -> AsyncIterator[tuple[sockets.Sockets, asyncio.Task[None]]]:
    own = sockets.Sockets(folder, _DRIVER)
    served = driver.Driver(ledger, latest.Latest({}), successor=own.successor)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(own.run(served, served))
        while not own.registration.exists():  # noqa: ASYNC110 - the file system tells nobody
            await asyncio.sleep(0.01)
        yield own, task
        task.cancel()


@contextlib.asynccontextmanager
async def _kubelet(path: Path) -> AsyncIterator[draplugin.Stub]:
    async with grpc.aio.insecure_channel(deviceplugin.target(path), options=deviceplugin.CHANNEL_OPTIONS) as channel:
        yield draplugin.Stub(channel)


async def test_calls_of_an_agent_without_a_ledger_are_answered_by_the_one_that_takes_over(folder: Path) -> None:
    first, second = Ledger(is_open=False), Ledger(is_open=True)
    async with (
        asyncio.TaskGroup() as tasks,
        _serving(folder, first) as (one, _),
        _kubelet(one.service) as stub,
    ):
        waiting = tasks.create_task(stub.prepare((_CLAIM,), timeout_s=20))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        async with _serving(folder, second):
            assert (await waiting)["u-1"].error == ""
            assert await stub.unprepare((_CLAIM,), timeout_s=20) == {"u-1": ""}
    assert second.calls == ["prepare u-1", "unprepare u-1"]


async def test_nobody_takes_over_and_the_call_says_why(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "HANDOVER_S", 0.2)
    async with _serving(folder, Ledger(is_open=False)) as (one, _), _kubelet(one.service) as stub:
        assert (await stub.prepare((_CLAIM,), timeout_s=20))["u-1"].error == "the ledger of this node is not open"


async def test_an_agent_that_ends_keeps_its_sockets_until_the_next_one_is_shown_to_the_kubelet(folder: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        one, task = await stack.enter_async_context(_serving(folder, Ledger(is_open=False)))
        with standby.stand_by(one.folder):
            task.cancel()
            await asyncio.sleep(0.2)
        stub = await stack.enter_async_context(_kubelet(one.service))
        waiting = tasks.create_task(stub.prepare((_CLAIM,), timeout_s=20))
        await asyncio.sleep(0.2)
        assert (one.registration.exists(), one.service.exists(), task.done()) == (True, True, False)
        await stack.enter_async_context(_serving(folder, Ledger(is_open=True)))
        assert (await waiting)["u-1"].error == ""
        async with asyncio.timeout(10):
            await asyncio.wait([task])
        assert not one.registration.exists()
        assert len(list(one.registry.glob("*-reg.sock"))) == 1


@pytest.mark.parametrize("left", ["nothing", "a socket that nobody serves"])
async def test_an_agent_that_nobody_waits_for_ends_at_once(folder: Path, left: str) -> None:
    async with _serving(folder, Ledger(is_open=True)) as (one, task):
        if left != "nothing":
            server = await asyncio.start_unix_server(lambda _, writer: writer.close(), one.folder / "standby-0.sock")
            server.close()
        task.cancel()
        async with asyncio.timeout(3):
            await asyncio.wait([task])
    assert not one.service.exists()


async def test_what_stood_by_is_gone_once_it_serves_and_swept_once_it_was_killed(folder: Path) -> None:
    place = folder / "plugins" / _DRIVER
    with standby.stand_by(place):  # no driver has served on this node: there is nobody to take over from
        assert not place.exists()
    place.mkdir(parents=True)
    with standby.stand_by(place):
        (path,) = place.glob(standby.NAMES)
        assert path.stat().st_mode & 0o777 == 0o600
        assert await standby.is_awaited(place)
    assert list(place.iterdir()) == []
    (await asyncio.start_unix_server(lambda _, writer: writer.close(), place / "standby-1.sock")).close()
    async with _serving(folder, Ledger(is_open=True)):
        assert list(place.glob(standby.NAMES)) == []


async def test_the_registration_stays_until_the_calls_that_run_have_ended(folder: Path) -> None:
    """A kubelet that sees it go closes the connection, and the call fails."""
    slow = Ledger(is_open=True)
    slow.takes_s = 3.0
    async with contextlib.AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        one, task = await stack.enter_async_context(_serving(folder, slow))
        stub = await stack.enter_async_context(_kubelet(one.service))
        with standby.stand_by(one.folder):
            waiting = tasks.create_task(stub.prepare((_CLAIM,), timeout_s=20))
            await asyncio.sleep(0.2)
            task.cancel()
            await asyncio.sleep(0.2)
        await stack.enter_async_context(_serving(folder, Ledger(is_open=True)))
        while not waiting.done():
            assert one.registration.exists()
            await asyncio.sleep(0.05)
        assert (await waiting)["u-1"].error == ""
        async with asyncio.timeout(10):
            await asyncio.wait([task])
        assert not one.registration.exists()


async def test_a_folder_that_has_no_room_for_the_name_keeps_no_agent_from_its_ledger(folder: Path) -> None:
    deep = folder / ("x" * (100 - len(str(folder))))  # a driver's own socket, which is shorter, would fit in it
    deep.mkdir()
    with standby.stand_by(deep):
        assert not await standby.is_awaited(deep)


@pytest.mark.parametrize("kind", ["full", "stale", "links", "files"])
async def test_a_folder_of_odd_sockets_holds_no_agent_up(folder: Path, kind: str) -> None:
    opened = list[socket.socket]()
    for number in range(50):
        path = folder / f"standby-{number}.sock"
        if kind == "links":
            path.symlink_to(path.name)
        elif kind == "files":
            path.write_text("")
        else:
            one = socket.socket(socket.AF_UNIX)
            one.bind(str(path))
            opened.append(one)
            if kind == "full":
                one.listen(0)
                other = socket.socket(socket.AF_UNIX)
                other.connect(str(path))
                opened.append(other)
    async with asyncio.timeout(1):
        assert await standby.is_awaited(folder) == (kind == "full")
    for one in opened:
        one.close()
