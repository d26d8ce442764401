"""Routes of exec: one more process in a running container, over a WebSocket.

Frames from the asker: binary is standard input; text is one of `{"resize": {"rows": R, "columns": C}}` and
`{"eof": true}`. Frames to the asker: binary is output; the last one is text, `{"exit_code": N}` or `{"problem": …}`.
Source: RFC 6455 for the frames; their meaning is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Annotated, Any

import litestar
import msgspec
from litestar import exceptions, params

from fairlead import errors
from fairlead.serve.api import problem
from fairlead.serve.backend import pods
from fairlead.serve.backend.port import require
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.store.subresource import Session
from fairlead.wire.text import typedjson

Socket = litestar.WebSocket[Any, Any, Any]


Size = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
"""As ioctl_tty(2) TIOCSWINSZ takes it."""


class Resize(msgspec.Struct, frozen=True):
    """The terminal's new size, in characters."""

    rows: Size
    columns: Size


class Control(msgspec.Struct, frozen=True):
    """A text frame from the asker."""

    resize: Resize | None = None
    eof: bool = False


@litestar.websocket("/v1/containers/{name:str}/exec")
async def exec_in_container(
    socket: Socket,
    services: Dependencies,
    name: params.FromPath[str],
    command: params.FromQuery[list[str] | None] = None,
    namespace: params.FromQuery[str] = "default",
    container: params.FromQuery[str] = "",
    tty: Annotated[bool, params.QueryParameter(description="give the process a terminal")] = False,
    stdin: Annotated[bool, params.QueryParameter(description="keep standard input open")] = False,
) -> None:
    """Run `command` (repeat the parameter for each word) and carry its streams until it ends."""
    await socket.accept()
    try:
        session = await _open(services, name, namespace, container, tuple(command or ()), tty, stdin)
    except errors.FairleadError as error:
        await _finish(socket, {"problem": problem.problem_of(error)})
        return
    try:
        await _carry(socket, session)
    finally:
        await session.close()


async def _open(
    services: Services,
    name: params.FromPath[str],
    namespace: str,
    container: str,
    argv: tuple[str, ...],
    tty: bool,
    stdin: bool,
) -> Session:
    if not argv:
        raise errors.Invalid("no command given", reason="CommandRequired", hint="for example -- sh")
    if nul := next((word for word in argv if "\0" in word), ""):
        shown = nul.replace("\0", "\\0")
        raise errors.Invalid(
            f'word "{shown}" of the command has a NUL', reason="CommandInvalid", hint="no program can be given one"
        )
    pod = await pods.find_pod(services.store, name, namespace)
    streams = require(services.backend.streams)
    return await streams.exec(pod, pods.container_name(pod, container), argv, tty=tty, stdin=stdin)


async def _carry(socket: Socket, session: Session) -> None:
    """Carry both directions; the process's end ends both, and so does the asker's leaving."""
    try:
        async with asyncio.TaskGroup() as group:
            feeding = group.create_task(_feed(socket, session))
            last = await _drain(socket, session)
            feeding.cancel()
        await _finish(socket, last)
    except* exceptions.WebSocketDisconnect:
        pass  # the asker left: the caller closes the session, which kills the process
    except* errors.FairleadError as failed:
        await _finish(socket, {"problem": problem.problem_of(_first(failed))})


def _first(group: BaseExceptionGroup[errors.FairleadError]) -> errors.FairleadError:
    """Return the error that a group of the session's tasks is about."""
    found = group.exceptions[0]
    return found if isinstance(found, errors.FairleadError) else _first(found)


async def _drain(socket: Socket, session: Session) -> dict[str, object]:
    try:
        while data := await session.read():
            await socket.send_bytes(data)
        return {"exit_code": await session.wait()}
    except errors.FairleadError as error:
        return {"problem": problem.problem_of(error)}


async def _feed(socket: Socket, session: Session) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise exceptions.WebSocketDisconnect(detail="the asker left")
        data, text = message.get("bytes"), message.get("text")
        if isinstance(data, bytes):
            await session.write(data)
        elif isinstance(text, str):
            await _obey(text, session)


async def _obey(text: str, session: Session) -> None:
    with contextlib.suppress(msgspec.MsgspecError):  # frames of a newer client are skipped
        control = typedjson.decode(text, type=Control)
        if control.resize is not None:
            await session.resize(control.resize.rows, control.resize.columns)
        if control.eof:
            await session.write(b"")


async def _finish(socket: Socket, last: dict[str, object]) -> None:
    await socket.send_text(msgspec.json.encode(last).decode())
    await socket.close()


ROUTES = (exec_in_container,)
