"""exec over a real socket and a real WebSocket: streams, sizes, exit codes, problems, an asker who leaves."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import urllib.parse
from pathlib import Path
from typing import Any

import httpx
from websockets.asyncio import client as websocket

from fairlead import errors
from fairlead.serve import server
from tests.unit.serve.world import World, application


async def _started(door: httpx.AsyncClient) -> str:
    made = await door.post("/v1/containers", json={"image": "demo", "args": ["sleep", "60"]})
    name: str = made.json()["name"]
    await door.get(f"/v1/containers/{name}/wait", params={"state": "started"})
    return name


def _connect(world: World, name: str, *command: str, **flags: str) -> Any:
    query = urllib.parse.urlencode([("command", word) for word in command] + list(flags.items()))
    path = str(world.services.info.socket)
    return websocket.unix_connect(path, f"ws://test/v1/containers/{name}/exec?{query}")


async def _all(connection: Any) -> tuple[bytes, dict[str, Any]]:
    output = b""
    async for frame in connection:
        if isinstance(frame, bytes):
            output += frame
        else:
            last: dict[str, Any] = json.loads(frame)
    return output, last


async def test_output_and_exit_code_come_back(door: httpx.AsyncClient, world: World) -> None:
    async with _connect(world, await _started(door), "sh", "-c", "echo hello; exit 7") as connection:
        assert await _all(connection) == (b"hello\n", {"exit_code": 7})


async def test_input_reaches_the_process_and_its_end_ends_it(door: httpx.AsyncClient, world: World) -> None:
    async with _connect(world, await _started(door), "cat", stdin="true") as connection:
        await connection.send(b"to be echoed")
        assert await connection.recv() == b"to be echoed"
        await connection.send(json.dumps({"eof": True}))
        assert await _all(connection) == (b"", {"exit_code": 0})


async def test_a_new_size_reaches_the_terminal(door: httpx.AsyncClient, world: World) -> None:
    async with _connect(world, await _started(door), "sh", stdin="true", tty="true") as connection:
        await connection.send(json.dumps({"resize": {"rows": 50, "columns": 132}}))
        await connection.send(json.dumps({"of": "a newer client"}))
        await connection.send(b"stty size\nexit\n")
        output, last = await _all(connection)
    assert b"50 132" in output
    assert last == {"exit_code": 0}


async def test_problems_are_told_in_the_last_frame(door: httpx.AsyncClient, world: World) -> None:
    ended = (await door.post("/v1/containers", json={"image": "demo"})).json()["name"]
    await door.get(f"/v1/containers/{ended}/wait")
    for name, command, reason in (
        ("nobody", ("sh",), "ContainerNotFound"),
        (ended, ("sh",), "ContainerNotRunning"),
        (ended, (), "CommandRequired"),
    ):
        async with _connect(world, name, *command) as connection:
            _, last = await _all(connection)
        assert last["problem"]["reason"] == reason


async def test_an_asker_who_leaves_ends_the_process(door: httpx.AsyncClient, world: World) -> None:
    name = await _started(door)
    async with _connect(world, name, "cat", stdin="true") as connection:
        await connection.send(b"x")
        await connection.recv()
    async with asyncio.timeout(50):
        # The session is closed by the server's own task; the next one shows that the service lives on.
        async with _connect(world, name, "echo", "still here") as connection:
            assert await _all(connection) == (b"still here\n", {"exit_code": 0})


async def test_a_word_with_a_nul_is_refused_before_anything_runs(door: httpx.AsyncClient, world: World) -> None:
    async with _connect(world, await _started(door), "echo", "a\0b") as connection:
        _, last = await _all(connection)
    assert (last["problem"]["reason"], "a\\0b" in last["problem"]["detail"]) == ("CommandInvalid", True)


async def test_a_size_that_no_terminal_has_is_passed_over(door: httpx.AsyncClient, world: World) -> None:
    async with _connect(world, await _started(door), "sh", stdin="true", tty="true") as connection:
        for rows in (-1, 70_000):
            await connection.send(json.dumps({"resize": {"rows": rows, "columns": 80}}))
        await connection.send(b"stty size\nexit\n")
        output, last = await _all(connection)
    assert (b"24 80" in output, last) == (True, {"exit_code": 0})


class _Deaf:
    """A session whose input cannot be ended; it goes on until it is closed."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    async def read(self) -> bytes:
        await self.closed.wait()
        return b""

    async def write(self, data: bytes) -> None:
        raise errors.Unavailable("the input cannot end", reason="InputCannotEnd", hint="end it otherwise")

    async def resize(self, rows: int, columns: int) -> None:
        raise AssertionError(rows)

    async def wait(self) -> int:
        raise AssertionError

    async def close(self) -> None:
        self.closed.set()


class _Streams:
    """Streams of one deaf session."""

    def __init__(self) -> None:
        self.session = _Deaf()

    async def exec(self, *_: object, **__: object) -> _Deaf:
        return self.session


async def test_input_that_cannot_be_carried_is_told_and_the_session_closed(world: World, tmp_path: Path) -> None:
    streams = _Streams()
    backend = dataclasses.replace(world.backend, streams=streams)  # type: ignore[arg-type]
    path, ready = tmp_path / "deaf.sock", asyncio.Event()
    made = application(dataclasses.replace(world.services, backend=backend))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.serve_unix(made, path, ready=ready))
        await ready.wait()
        async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://test") as http:
            name = await _started(http)
        uri = f"ws://test/v1/containers/{name}/exec?command=cat&stdin=true"
        async with websocket.unix_connect(str(path), uri) as connection:
            await connection.send(json.dumps({"eof": True}))
            _, last = await _all(connection)
        assert last["problem"]["reason"] == "InputCannotEnd"
        await streams.session.closed.wait()
        task.cancel()
