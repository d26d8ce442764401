"""Carries connections to a container's ports, one WebSocket each: `WS /v1/containers/NAME/ports/PORT`.

Binary frames are the connection's bytes, both ways; the client ends it with `{"eof": true}` or by leaving. A last text
frame, `{"problem": …}`, says why it broke; without one it ended as connections do. The service connects on the
container's own loopback, so that a server there is reached by who may enter the container and by no one else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import litestar
import msgspec
from litestar import exceptions, params

from fairlead import errors
from fairlead.serve.backend.containers import pods
from fairlead.serve.backend.port import require
from fairlead.serve.v1.containers.access.carry import Control, Socket, notice_end
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.store.subresource import Connection
from fairlead.wire.fairlead import problem
from fairlead.wire.text import typedjson

_LARGEST = 65535


@litestar.websocket("/v1/containers/{name:str}/ports/{port:int}")
async def forward_port(
    socket: Socket,
    services: Dependencies,
    name: params.FromPath[str],
    port: params.FromPath[int],
    namespace: params.FromQuery[str] = "default",
) -> None:
    """Connect to a port of the container and carry what either side sends."""

    async def opened() -> Connection:
        if not 0 < port <= _LARGEST:
            message = f"port {port} is not one from 1 to {_LARGEST}"
            raise errors.Invalid(message, reason="PortInvalid", hint="name the port that its server listens on")
        pod = await pods.find_pod(services.store, name, namespace)
        return await require(services.backend.streams).port_forward(pod, port)

    await _carry(socket, opened)


async def _carry(socket: Socket, opening: Callable[[], Awaitable[Connection]]) -> None:
    await socket.accept()
    try:
        connection = await opening()
    except errors.FairleadError as error:
        await _refuse(socket, error)
        return
    try:
        async with asyncio.TaskGroup() as group:
            feeding = group.create_task(_feed(socket, connection))
            draining = group.create_task(_drain(socket, connection))
            leaving = group.create_task(notice_end(socket))
            await asyncio.wait((feeding, draining), return_when=asyncio.FIRST_COMPLETED)
            for one in (feeding, draining, leaving):
                one.cancel()
        await socket.close()
    except* exceptions.WebSocketDisconnect:
        pass  # the client left
    except* errors.FairleadError as failed:
        await _refuse(socket, failed.exceptions[0])
    finally:
        await connection.close()


async def _refuse(socket: Socket, error: BaseException) -> None:
    """Say why it broke, as the last word."""
    if isinstance(error, errors.FairleadError):
        await socket.send_text(msgspec.json.encode({"problem": problem.problem_of(error)}).decode())
    await socket.close()


async def _drain(socket: Socket, connection: Connection) -> None:
    while data := await connection.read():
        await socket.send_bytes(data)


async def _feed(socket: Socket, connection: Connection) -> None:
    """Carry what the client sends, until it has no more."""
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise exceptions.WebSocketDisconnect(detail="the client left")
        data, text = message.get("bytes"), message.get("text")
        if isinstance(data, bytes):
            await connection.write(data)
        elif isinstance(text, str) and _ends(text):
            return


def _ends(text: str) -> bool:
    try:
        return typedjson.decode(text, type=Control).eof
    except msgspec.MsgspecError:
        return False  # a frame of a newer client is skipped


ROUTES = (forward_port,)
