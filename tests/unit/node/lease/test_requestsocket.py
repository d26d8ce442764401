"""A person's request for a GPU: through the agent's socket, or on the ledger itself while no agent runs."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from fairlead import errors
from fairlead.node.lease import requestsocket
from fairlead.node.lease.ledger import Ledger
from fairlead.plan.lease import settle
from fairlead.plan.lease.row import Row, State


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: a unix socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


@pytest.fixture
async def ledger(folder: Path) -> AsyncIterator[Ledger]:
    made = Ledger(folder)
    await made.act(lambda _: settle.plan_steps(Row(key="GPU-a", boot_id="b"), settle.Seen(), at=1, boot_id="b"))
    yield made
    made.close()


def request(verb: str, gpu: str = "GPU-a") -> requestsocket.Request:
    return requestsocket.Request(verb=verb, gpu=gpu, by="root", why="smells")


async def test_a_wish_goes_through_the_agents_socket_which_only_its_owner_may_open(
    ledger: Ledger, folder: Path
) -> None:
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(
            requestsocket.serve(folder, ledger.act, lambda: dict(ledger.rows.value), lambda: {0: "GPU-a"})
        )
        async with asyncio.timeout(20):
            while not (folder / requestsocket.SOCKET).exists():  # noqa: ASYNC110  (a file, which nothing announces)
                await asyncio.sleep(0.001)
        row = await asyncio.to_thread(requestsocket.ask, folder, request("quarantine"))
        assert (row.state, row.message) == (State.QUARANTINED, "smells")
        assert stat.S_IMODE((folder / requestsocket.SOCKET).stat().st_mode) == 0o600
        with pytest.raises(errors.NotFound) as caught:
            await asyncio.to_thread(requestsocket.ask, folder, request("release", "another"))
        assert caught.value.reason == "GPUUnknown"
        # The driver's index, as the agent knows it now; a digit is never taken for a part of a UUID.
        assert (await asyncio.to_thread(requestsocket.ask, folder, request("release", "0"))).state is State.DIRTY
        with pytest.raises(errors.NotFound) as caught:
            await asyncio.to_thread(requestsocket.ask, folder, request("quarantine", "1"))
        assert "no GPU here has the index 1 (0 to 0)" in caught.value.message
        task.cancel()


@pytest.mark.parametrize("line", [b"", b"nonsense\n", b'{"verb": "quarantine"}\n', b"x" * 100_000])
async def test_a_line_that_is_no_wish_is_answered_or_dropped_and_the_next_is_heard(
    ledger: Ledger, folder: Path, line: bytes
) -> None:
    def send() -> bytes:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(folder / requestsocket.SOCKET))
            client.sendall(line)
            client.shutdown(socket.SHUT_WR)
            try:
                return client.recv(65536)
            except ConnectionResetError:
                return b""

    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(
            requestsocket.serve(folder, ledger.act, lambda: dict(ledger.rows.value), lambda: {0: "GPU-a"})
        )
        async with asyncio.timeout(20):
            while not (folder / requestsocket.SOCKET).exists():  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        answer = await asyncio.to_thread(send)
        assert not answer or json.loads(answer)["reason"] == "RequestMalformed"
        assert (await asyncio.to_thread(requestsocket.ask, folder, request("quarantine"))).state is State.QUARANTINED
        task.cancel()


async def test_without_an_agent_the_wish_is_carried_out_on_the_ledger(ledger: Ledger, folder: Path) -> None:
    ledger.close()
    assert (await asyncio.to_thread(requestsocket.ask, folder, request("quarantine"))).state is State.QUARANTINED
    assert (await asyncio.to_thread(requestsocket.ask, folder, request("quarantine"))).epoch == 3
    assert (await asyncio.to_thread(requestsocket.ask, folder, request("release"))).state is State.DIRTY


async def test_an_index_needs_the_agent_that_knows_it(folder: Path) -> None:
    made = Ledger(folder)
    await made.act(lambda _: settle.plan_steps(Row(key="GPU-1f", boot_id="b"), settle.Seen(), at=1, boot_id="b"))
    made.close()
    with pytest.raises(errors.NotFound) as caught:
        await asyncio.to_thread(requestsocket.ask, folder, request("quarantine", "1"))
    assert "1 is an index" in caught.value.message
    assert "UUID" in (caught.value.hint or "")


async def test_a_gpu_that_is_not_kept_back_cannot_be_released(ledger: Ledger, folder: Path) -> None:
    ledger.close()
    with pytest.raises(errors.Conflict) as caught:
        await asyncio.to_thread(requestsocket.ask, folder, request("release"))
    assert caught.value.reason == "GPUNotKeptBack"


async def test_no_wish_makes_a_gpu_free(ledger: Ledger, folder: Path) -> None:
    ledger.close()
    with pytest.raises(errors.Invalid) as caught:
        await asyncio.to_thread(requestsocket.ask, folder, request("free"))
    assert caught.value.reason == "IntentUnknown"


def test_where_there_is_no_ledger_the_message_says_how_there_is_one(folder: Path) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        requestsocket.ask(folder, request("quarantine"))
    assert "lease.ledger=on" in (caught.value.hint or "")
