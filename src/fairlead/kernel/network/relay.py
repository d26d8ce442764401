"""Relays TCP connections from a port, of the host or of a process's network namespace, to a port in a namespace.

Each connection has a bounded buffer each way; beyond a number of connections more are closed at once.
Source: setns(2), network_namespaces(7).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.kernel.network import netns

_CHUNK: Final = 1 << 16
_MOST: Final = 1024
_DIAL_S: Final = 5.0
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Where:
    """A TCP port as a process sees it."""

    pid: int
    """Whose network namespace it is in."""
    address: str
    port: int


class Relay:
    """One listening port."""

    def __init__(self, choose: Callable[[], Where | None]) -> None:
        """Take what says where the next connection leads; None: nowhere now."""
        self._choose = choose
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    async def listen(self, port: int, *, pid: int | None = None) -> None:
        """Listen. Args: pid: in whose namespace; None: the host's. Raises: Unavailable (`PortTaken`, …)."""
        made = await netns.make_socket(pid, socket.AF_INET) if pid is not None else _host_socket()
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(("0.0.0.0", port))  # noqa: S104 as a published port and a Service's port do
            made.listen(_BACKLOG)
        except OSError as error:
            made.close()
            message = f"port {port} cannot be listened on: {error.strerror}"
            raise errors.Unavailable(message, reason="PortTaken", hint="does another program listen there?") from error
        self._server = await asyncio.start_server(self._serve, sock=made)

    async def close(self) -> None:
        """Stop listening, and end the connections. Idempotent."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            where = self._choose() if len(self._open) <= _MOST else None
            if where is not None:
                await _lead(reader, writer, where)
        except (OSError, TimeoutError, errors.FairleadError):
            pass  # the other side is gone, or not there: the connection ends
        finally:
            self._open.discard(writer)
            writer.transport.abort()


def _host_socket() -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setblocking(False)
    return made


async def _lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, where: Where) -> None:
    made = await netns.make_socket(where.pid, socket.AF_INET)
    try:
        async with asyncio.timeout(_DIAL_S):
            await asyncio.get_running_loop().sock_connect(made, (where.address, where.port))
    except BaseException:
        made.close()
        raise
    inner, outer = await asyncio.open_connection(sock=made)
    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(_pump(reader, outer))
            both.create_task(_pump(inner, writer))
    except* OSError:
        pass  # one side broke off
    finally:
        outer.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        sink.write(data)
        await sink.drain()
    with contextlib.suppress(OSError):
        sink.write_eof()
