"""Opens connections inside the network namespaces of processes.

A namespace belongs to a thread (setns(2)), so the connection is made in a thread that ends afterwards; the connected
socket keeps the namespace it was made in and is used from any thread.
Source: setns(2), network_namespaces(7).
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
from concurrent import futures
from pathlib import Path
from typing import Final

from fairlead import errors

_CLONE_NEWNET: Final = 0x40000000
_TIMEOUT_S: Final = 10.0
_CHUNK: Final = 1 << 16
_LOOPBACKS: Final = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Connection:
    """Bytes to and from one TCP peer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def read(self) -> bytes:
        """Return the next bytes, b"" at the end. Raises: Unavailable: the peer broke off."""
        try:
            return await self._reader.read(_CHUNK)
        except OSError as error:
            raise _broken(error) from error

    async def write(self, data: bytes) -> None:
        """Send bytes. Raises: Unavailable: the peer broke off."""
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise _broken(error) from error

    async def close(self) -> None:
        """Close both directions. Idempotent."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def _broken(error: OSError) -> errors.Unavailable:
    return errors.Unavailable(
        f"the connection into the container broke: {error.strerror or error}", reason="ConnectionBroken"
    )


async def connect(pid: int, port: int, *, root: Path = Path("/")) -> Connection:
    """Connect to a port on the loopback of a process's network namespace.

    Raises: Unavailable (`PortRefused`): no process listens there; (`NamespaceUnusable`): it is gone or closed to us.
    """
    loop = asyncio.get_running_loop()
    pool = futures.ThreadPoolExecutor(1, "netns")
    try:
        connected = await loop.run_in_executor(pool, _connected, root / "proc" / str(pid) / "ns/net", port)
    finally:
        pool.shutdown(wait=False)
    return Connection(*await asyncio.open_connection(sock=connected))


async def reach(where: str, port: int) -> Connection:
    """Connect to a port of an address from the host's network; without an address nothing is there.

    Raises: Unavailable (`PortRefused`).
    """
    if not where:
        message = "the container has no address: nothing reaches its network from this machine"
        raise errors.Unavailable(message, reason="PortRefused", hint="is its network none, or has it just started?")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return Connection(*await asyncio.open_connection(where, port))
    except (OSError, TimeoutError) as error:
        message = f"no process answers on port {port} of {where}: {getattr(error, 'strerror', None) or 'it timed out'}"
        raise errors.Unavailable(message, reason="PortRefused", hint="does its process listen there?") from error


async def make_socket(pid: int, family: socket.AddressFamily, *, root: Path = Path("/")) -> socket.socket:
    """Return a TCP socket of a process's network namespace, not connected and not blocking.

    Raises: Unavailable (`NamespaceUnusable`): it is gone or closed to us.
    """
    loop = asyncio.get_running_loop()
    pool = futures.ThreadPoolExecutor(1, "netns")

    def made() -> socket.socket:
        _enter(root / "proc" / str(pid) / "ns/net")
        one = socket.socket(family, socket.SOCK_STREAM)
        one.setblocking(False)
        return one

    try:
        return await loop.run_in_executor(pool, made)
    finally:
        pool.shutdown(wait=False)


def enter(namespace: Path) -> None:
    """Move this thread into a network namespace, for the rest of its life. Raises: OSError."""
    with namespace.open("rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _enter(namespace: Path) -> None:
    try:
        enter(namespace)
    except OSError as error:
        message = f"cannot enter the network namespace {namespace}: {error.strerror}"
        raise errors.Unavailable(message, reason="NamespaceUnusable", hint="is the container still running?") from error


def _connected(namespace: Path, port: int) -> socket.socket:
    _enter(namespace)
    problem = OSError("no loopback")
    for family, address in _LOOPBACKS:
        one = socket.socket(family, socket.SOCK_STREAM)
        one.settimeout(_TIMEOUT_S)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a key that is typed does not wait for the last one
        try:
            one.connect((address, port))
        except OSError as error:
            one.close()
            problem = error if family == socket.AF_INET else problem
            continue
        one.setblocking(False)
        return one
    message = f"no process answers on port {port} in the container: {problem.strerror or problem}"
    raise errors.Unavailable(message, reason="PortRefused", hint="does its process listen there?")
