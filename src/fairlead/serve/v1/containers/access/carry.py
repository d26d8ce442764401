"""Carries the streams of a process over a WebSocket, for exec, attach and copies.

Frames from the client: binary is standard input; text is one of `{"resize": {"rows": R, "columns": C}}` and
`{"eof": true}`. Frames to the client: binary is output; the last one is text, `{"exit_code": N}` or `{"problem": …}`.
Where the client wants the streams apart, the first byte of each binary frame is 1 for output and 2 for standard error.
Each socket has tasks of its own, and nothing is read from a process before the client has taken what came before: a
client that stops reading stops that process alone.
Source: RFC 6455 for the frames; their meaning is ours.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import litestar
import msgspec
from litestar import exceptions

from fairlead import errors
from fairlead.model.container.output import ErrorOutput
from fairlead.serve import peer
from fairlead.store.subresource import Session
from fairlead.wire.fairlead import problem
from fairlead.wire.text import typedjson

Socket = litestar.WebSocket[Any, Any, Any]
OUTPUT: Final = b"\x01"
ERRORS: Final = b"\x02"


Size = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF)]
"""As ioctl_tty(2) TIOCSWINSZ takes it."""


class Resize(msgspec.Struct, frozen=True):
    """The terminal's new size, in characters."""

    rows: Size
    columns: Size


class Control(msgspec.Struct, frozen=True):
    """A text frame from the client."""

    resize: Resize | None = None
    eof: bool = False


async def carry(socket: Socket, opening: Callable[[], Awaitable[Session]], *, is_split: bool) -> None:
    """Accept the socket, open the session and carry its streams until it ends.

    Args: opening: called once the socket is open, which a client that has left never sees.
          is_split: each binary frame to the client begins with the number of its stream.
    """
    await socket.accept()
    try:
        session = await opening()
    except errors.FairleadError as error:
        await _finish(socket, {"problem": problem.problem_of(error)})
        return
    try:
        await _carry(socket, session, is_split=is_split)
    finally:
        await session.close()


async def _carry(socket: Socket, session: Session, *, is_split: bool) -> None:
    """Carry both directions; the process's end ends both, and so does the client's leaving."""
    try:
        async with asyncio.TaskGroup() as group:
            others = group.create_task(_feed(socket, session)), group.create_task(notice_end(socket))
            last = await _drain(socket, session, is_split=is_split)
            for one in others:
                one.cancel()
        await _finish(socket, last)
    except* exceptions.WebSocketDisconnect:
        pass  # the client left: the caller closes the session, which kills the process
    except* errors.FairleadError as failed:
        await _finish(socket, {"problem": problem.problem_of(_first(failed))})


def _first(group: BaseExceptionGroup[errors.FairleadError]) -> errors.FairleadError:
    """Return the error that a group of the session's tasks is about."""
    found = group.exceptions[0]
    return found if isinstance(found, errors.FairleadError) else _first(found)


async def _drain(socket: Socket, session: Session, *, is_split: bool) -> dict[str, object]:
    try:
        while data := await session.read():
            stream = (ERRORS if isinstance(data, ErrorOutput) else OUTPUT) if is_split else b""
            await socket.send_bytes(stream + data)
        return {"exit_code": await session.wait()}
    except errors.FairleadError as error:
        return {"problem": problem.problem_of(error)}


async def _feed(socket: Socket, session: Session) -> None:
    while True:
        message = await socket.receive()
        if message["type"] == "websocket.disconnect":
            raise exceptions.WebSocketDisconnect(detail="the client left")
        data, text = message.get("bytes"), message.get("text")
        if isinstance(data, bytes):
            await session.write(data)
        elif isinstance(text, str):
            await _obey(text, session)


async def notice_end(socket: Socket) -> None:
    """End the session when its client disconnects; feeding does not notice while the process takes no input."""
    gone = peer.gone_of_state(socket.scope.get("state") or {})
    if gone is not None:
        await gone.wait()
        raise exceptions.WebSocketDisconnect(detail="the client is gone")


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
