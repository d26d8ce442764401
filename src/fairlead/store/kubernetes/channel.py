"""Carries several byte streams over one WebSocket, as API servers do for exec, attach and port-forward.

Every message is one byte that names a channel, then data: 0 standard input, 1 output, 2 errors, 3 how it ended (a
`Status`), 4 the terminal's size. Protocol v5 adds 255, which closes the channel that its next byte names: the only way
to end standard input alone. Port-forward uses 0 for data and 1 for an error, each opened by two bytes of port number.
Source: apimachinery pkg/util/remotecommand/constants.go; kubelet pkg/cri/streaming/portforward/websocket.go; KEP-4006.
"""

from __future__ import annotations

import collections
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp
import msgspec

from fairlead import errors
from fairlead.model.container.output import ErrorOutput
from fairlead.wire.kubernetes import api

Socket = aiohttp.ClientWebSocketResponse
V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"
_STDIN, _STDOUT, _STDERR, _ENDED, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255
_DATA, _ERROR = 0, 1
_CHUNK: Final = 1 << 16
_END_OF_TRANSMISSION: Final = b"\x04"
_LONGEST_CODE: Final = 9
"""Digits of an exit code; Python reads numbers of up to 4,300."""
_NOT_RUNNING: Final = (
    "container not found",
    "not running",
    "not found in pod",
    "is not in running state",
    "cannot exec in a stopped container",
    "namespace path: lstat /proc/",
)
"""What kubelets say of a container whose process is not there; the last two are runc's, of one that ends right then."""


async def _send(socket: Socket, channel: int, data: bytes) -> None:
    try:
        for start in range(0, max(1, len(data)), _CHUNK):
            await socket.send_bytes(bytes((channel,)) + data[start : start + _CHUNK])
    except (aiohttp.ClientError, ConnectionError):
        pass  # how it ended is read, not written


async def _receive(socket: Socket) -> tuple[int, bytes] | None:
    """Return the next message with data, None once the connection is over. Raises: ProtocolError."""
    while True:
        message = await socket.receive()
        match message.type:
            case aiohttp.WSMsgType.BINARY if message.data:
                return message.data[0], message.data[1:]
            case aiohttp.WSMsgType.BINARY:
                continue
            case aiohttp.WSMsgType.TEXT:
                error = f"the API server sent text, {message.data[:40]!r}, where channels of bytes were asked for"
                raise errors.ProtocolError(error, reason="StreamUnreadable", hint="is a proxy in between?")
            case _:
                return None


def _broken(what: str) -> errors.Unavailable:
    hint = "the process may still run: `fairlead ps`, then ask again"
    return errors.Unavailable(f"the connection of {what} broke off", reason="StreamBroken", hint=hint)


class ProcessStreams:
    """A `subresource.Session` over a WebSocket."""

    def __init__(
        self,
        socket: Socket,
        *,
        what: str,
        tty: bool,
        stdin: bool,
        exit_code: Callable[[], Awaitable[int]] | None = None,
    ) -> None:
        """Take an open connection.

        Args:    what: for errors.   stdin: input was asked for.
                 exit_code: asked once the stream ended well, where that says no code (attach).
        """
        self._socket = socket
        self._what = what
        self._tty = tty
        self._has_input = stdin
        self._ask_exit_code = exit_code
        self._pending: collections.deque[bytes] = collections.deque()
        self._is_over = False
        self._end: api.Status | None = None

    async def read(self) -> bytes:
        """See `subresource.Session.read`."""
        while not self._pending and not self._is_over:
            await self._take()
        return self._pending.popleft() if self._pending else b""

    async def _take(self) -> None:
        """Take over the next message."""
        found = await _receive(self._socket)
        match found:
            case None:
                self._is_over = True
            case (channel, data) if channel in {_STDOUT, _STDERR} and data:
                self._pending.append(data if channel == _STDOUT else ErrorOutput(data))
            case (channel, data) if channel == _ENDED and data:
                self._end = _status(data)
                self._is_over = True
            case _:
                pass  # channels that open empty, or close

    async def write(self, data: bytes) -> None:
        """See `subresource.Session.write`. Raises: Unavailable: the server's protocol cannot end the input alone."""
        if not self._has_input:
            return
        if data:
            await _send(self._socket, _STDIN, data)
        elif self._tty:
            await _send(self._socket, _STDIN, _END_OF_TRANSMISSION)
        elif self._socket.protocol == V5:
            await _send(self._socket, _CLOSE, bytes((_STDIN,)))
        else:
            message = (
                f"the API server speaks {self._socket.protocol}, which cannot say that the input of {self._what} ended"
            )
            hint = "Kubernetes 1.30 or newer can; or give the process a way to end without it, such as `head -c BYTES`"
            raise errors.Unavailable(message, reason="InputCannotEnd", hint=hint)

    async def resize(self, rows: int, columns: int) -> None:
        """See `subresource.Session.resize`."""
        if self._tty:
            await _send(self._socket, _RESIZE, msgspec.json.encode({"Width": columns, "Height": rows}))

    async def wait(self) -> int:
        """See `subresource.Session.wait`. Raises: Invalid (`ExecFailed`), Conflict (`ContainerNotRunning`) as well."""
        while not self._is_over:
            await self._take()
        if self._end is None and self._ask_exit_code is None:
            raise _broken(self._what)
        if self._end is not None:
            code = _exit_code(self._end, self._what)
            if code or self._ask_exit_code is None:
                return code
        return await self._ask_exit_code() if self._ask_exit_code is not None else 0

    async def close(self) -> None:
        """See `subresource.Session.close`."""
        await self._socket.close()


def _status(data: bytes) -> api.Status:
    try:
        return api.status.decode(data)
    except msgspec.MsgspecError as error:
        message = f"how the process ended cannot be read: {error}"
        raise errors.ProtocolError(message, reason="StreamUnreadable") from error


def _exit_code(end: api.Status, what: str) -> int:
    """Return the exit code. Raises: what kept the process from running."""
    if end.status == "Success":
        return 0
    causes = end.details.causes if end.details is not None else ()
    code = next((cause.message for cause in causes if cause.reason == "ExitCode"), "")
    if code.isdecimal() and len(code) <= _LONGEST_CODE:
        return int(code)
    if any(words in end.message for words in _NOT_RUNNING):
        raise errors.Conflict(
            f"{what}: {end.message}", reason="ContainerNotRunning", hint="`fairlead explain` says where it stands"
        )
    raise errors.Invalid(f"{what}: {end.message}", reason="ExecFailed", hint="is the program in the image?")


class PortStream:
    """A `subresource.Connection` over a WebSocket."""

    def __init__(self, socket: Socket, *, what: str) -> None:
        """Take an open connection to one port; `what` is for errors."""
        self._socket = socket
        self._what = what
        self._opened: set[int] = set()

    async def read(self) -> bytes:
        """See `subresource.Connection.read`."""
        while (found := await _receive(self._socket)) is not None:
            channel, data = found
            if channel not in self._opened:
                self._opened.add(channel)  # the number of the port comes first, on each channel
                data = data[2:]
            if data and channel == _ERROR:
                message = f"{self._what}: {data.decode(errors='replace')}"
                raise errors.Unavailable(message, reason="PortRefused", hint="does its process listen there?")
            if data and channel == _DATA:
                return data
        return b""

    async def write(self, data: bytes) -> None:
        """See `subresource.Connection.write`."""
        if data:
            await _send(self._socket, _DATA, data)

    async def close(self) -> None:
        """See `subresource.Connection.close`."""
        await self._socket.close()
