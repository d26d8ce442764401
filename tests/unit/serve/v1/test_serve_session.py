"""exec over a real socket and a real WebSocket: streams, sizes, exit codes, problems, an asker who leaves."""

from __future__ import annotations

import asyncio
import json
import urllib.parse
from typing import Any

import httpx
from websockets.asyncio import client as websocket

from tests.unit.serve.world import World


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
