"""Serves applications on a unix socket that only its owner may open, or on an address.

The unix socket is made beside its final name, given its mode and renamed into place, so that nobody can connect to it
before it is 0600, and a socket that a dead service left behind is replaced in the same step. Signals are left to the
caller: cancelling the task ends the service, open requests get two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal

import uvicorn

from fairlead import errors

_LONGEST: Final = 107  # sun_path holds 108 bytes with its closing NUL (unix(7))
_BESIDE: Final = len("/.s12345678/s")
_GRACE_S: Final = 2


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(path: Path, *, mode: int = 0o600) -> socket.socket:
    """Return a socket that listens at `path`; whatever a dead service left there is replaced.

    Raises: Conflict (`ServiceRunning`): another service answers there, or the path is not a socket.
            Invalid: the path is longer than the kernel takes.   Unavailable: the folder cannot be written.
    """
    if max(len(str(path).encode()), len(str(path.parent).encode()) + _BESIDE) > _LONGEST:
        message = f"socket path {path} is too long for the kernel"
        raise errors.Invalid(message, reason="SocketPathTooLong", hint="choose another --api-socket")
    _refuse_living(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".s", dir=path.parent) as folder:
            temporary = Path(folder) / "s"
            listener.bind(str(temporary))
            temporary.chmod(mode)
            listener.listen(128)
            temporary.rename(path)
    except OSError as error:
        listener.close()
        message = f"cannot listen on {path}: {error.strerror or error}"
        raise errors.Unavailable(message, reason="SocketUnusable", hint="choose another --api-socket") from error
    listener.setblocking(False)
    return listener


def _refuse_living(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_socket():
        message = f"{path} is in the way: it is not a socket"
        raise errors.Conflict(message, reason="SocketPathTaken", hint="remove it, or choose another --api-socket")
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        probe.settimeout(1)
        with contextlib.suppress(ConnectionRefusedError, FileNotFoundError):
            probe.connect(str(path))
            message = f"another service answers at {path}"
            raise errors.Conflict(
                message, reason="ServiceRunning", hint="`fairlead status` asks it; `fairlead down` ends it"
            )


async def serve_unix(app: Any, path: Path, *, ready: asyncio.Event | None = None) -> None:
    """Serve an ASGI application at `path` until cancelled, then remove the socket.

    Args:    ready: set as soon as clients can connect.   Raises: as `listen`.
    """
    listener = listen(path)
    mine = _inode(path)
    try:
        if ready is not None:
            ready.set()
        await _serve(app, listener, ws="websockets-sansio")
    finally:
        _remove(path, mine)


def listen_at(address: str) -> socket.socket:
    """Return a socket that listens at `host:port`; no host means every address of the machine.

    Raises: Invalid: the address is none.   Unavailable: it is taken, or not this machine's.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        hint = "write host:port, for example 127.0.0.1:9400 or :9400"
        raise errors.Invalid(f'"{address}" is not an address to listen at', reason="AddressInvalid", hint=hint)
    bare = host.removeprefix("[").removesuffix("]")
    try:
        # Without a host both families, where the kernel has both.
        dual = not bare and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual or ":" in bare else socket.AF_INET
        listener = socket.create_server((bare, int(port)), family=family, dualstack_ipv6=dual)
    except OSError as error:
        message = f"cannot listen at {address}: {error.strerror or error}"
        raise errors.Unavailable(message, reason="AddressUnusable", hint="choose another address") from error
    listener.setblocking(False)
    return listener


async def serve_at(app: Any, listener: socket.socket) -> None:
    """Serve a plain HTTP application on a listening socket until cancelled, and close it."""
    with contextlib.closing(listener):
        await _serve(app, listener, ws="none")


async def _serve(app: Any, listener: socket.socket, *, ws: Literal["none", "websockets-sansio"]) -> None:
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws=ws,
        timeout_graceful_shutdown=_GRACE_S,
    )
    server = _Server(config)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True
            await serving
            raise


def _inode(path: Path) -> int:
    return path.stat().st_ino


def _remove(path: Path, inode: int) -> None:
    """Remove the socket unless a later service has put its own there."""
    with contextlib.suppress(FileNotFoundError):
        if _inode(path) == inode:
            path.unlink()
