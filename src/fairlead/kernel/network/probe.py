"""Sends packets from inside a process's network namespace: whether a port answers there, and a listener that does.

Each socket is made in a thread that has entered the namespace and ends afterwards; the socket stays in it. What answers
is our own listener with a secret word, or, for names, any answer at all, so that no other program is taken
for it.
Source: setns(2), network_namespaces(7).
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable
from concurrent import futures
from pathlib import Path
from typing import Final, TypeVar

from fairlead import errors
from fairlead.kernel.network import netns

T = TypeVar("T")
_WORD_BYTES: Final = 16
_ONE_QUESTION: Final = b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
"""The header of a question after its id: recursion desired, one question. Source: RFC 1035, section 4.1.1."""
_ADDRESS: Final = b"\x00\x01\x00\x01"
"""An IPv4 address, of the Internet. Source: RFC 1035, sections 3.2.2 and 3.2.4."""


class Listener:
    """Answers with a word on a TCP port of a namespace."""

    def __init__(self, server: asyncio.Server, port: int, word: bytes) -> None:
        self._server = server
        self.port, self.word = port, word

    async def close(self) -> None:
        """Stop answering."""
        self._server.close()
        with contextlib.suppress(OSError):
            await self._server.wait_closed()


@contextlib.asynccontextmanager
async def listening(pid: int | None, family: int, address: str) -> AsyncIterator[Listener]:
    """Listen on a free port of an address for the length of a block.

    Args:   pid: whose namespace; None: the host's.   family: 4 or 6.
    Raises: Unavailable (`ProbeFailed`): the namespace or the address is not there.
    """
    made = await _inside(pid, lambda: _bound(family, address))
    word = secrets.token_bytes(_WORD_BYTES)

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(word)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, sock=made)
    listener = Listener(server, made.getsockname()[1], word)
    try:
        yield listener
    finally:
        await listener.close()


def _bound(family: int, address: str) -> socket.socket:
    made = socket.socket(_FAMILIES[family], socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((address, 0))
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


_FAMILIES: Final = {4: socket.AF_INET, 6: socket.AF_INET6}


async def reaches(pid: int | None, family: int, address: str, listener: Listener, *, timeout_s: float) -> bool:
    """Return whether a connection from a process's namespace to a listener brings the listener's word.

    Raises: Unavailable (`ProbeFailed`): the namespace is not there.
    """
    made = await _inside(pid, lambda: socket.socket(_FAMILIES[family], socket.SOCK_STREAM))
    made.setblocking(False)
    try:
        async with asyncio.timeout(timeout_s):
            await asyncio.get_running_loop().sock_connect(made, (address, listener.port))
            return await asyncio.get_running_loop().sock_recv(made, 2 * _WORD_BYTES) == listener.word
    except OSError:  # refused, unreachable, or no answer in time (TimeoutError is one)
        return False
    finally:
        made.close()


async def resolves(pid: int, family: int, server: str, name: str, *, timeout_s: float) -> bool:
    """Return whether a name server answers a question for a name from a process's namespace, whatever it answers.

    Args:   name: one that the server knows itself. For any other it asks the host's name servers, and does not answer
            while those do not (aardvark-dns 1.14).
    Raises: as `reaches`.
    """
    made = await _inside(pid, lambda: socket.socket(_FAMILIES[family], socket.SOCK_DGRAM))
    made.setblocking(False)
    loop, identity = asyncio.get_running_loop(), secrets.token_bytes(2)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.sock_connect(made, (server, 53))
            await loop.sock_sendall(made, identity + question(name))
            return (await loop.sock_recv(made, 512))[:2] == identity
    except OSError:
        return False
    finally:
        made.close()


def question(name: str) -> bytes:
    """Return a question for the IPv4 address of a name, without its id. Source: RFC 1035, section 4.1.2."""
    labels = b"".join(bytes([len(label)]) + label for label in name.encode("ascii").split(b"."))
    return _ONE_QUESTION + labels + b"\0" + _ADDRESS


async def _inside(pid: int | None, make: Callable[[], T]) -> T:
    """Return what a thread makes that has entered a process's network namespace."""
    loop = asyncio.get_running_loop()
    pool = futures.ThreadPoolExecutor(1, "netprobe")

    def called() -> T:
        if pid is not None:
            netns.enter(Path("/proc") / str(pid) / "ns/net")
        return make()

    try:
        return await loop.run_in_executor(pool, called)
    except OSError as error:
        message = f"no packet can be sent from process {pid}: {error.strerror or error}"
        raise errors.Unavailable(message, reason="ProbeFailed", hint="is the container still running?") from error
    finally:
        pool.shutdown(wait=False)
