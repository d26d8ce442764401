"""Lets programs of this machine talk to a port inside a container, through the service.

A listener of this machine takes connections, and each is carried by a WebSocket of its own, with two threads. The
service connects on the container's own loopback, so that a server there need not listen on any network.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from fairlead import errors
from fairlead.client import calls, transport
from fairlead.wire.fairlead import problem

_CHUNK: Final = 1 << 16
_AHEAD: Final = 64
"""Connections that may wait to be taken."""
Report = Callable[[errors.FairleadError], None]


def ignore(_error: errors.FairleadError) -> None:
    """Report nothing: who connected sees the connection end."""


class Forward:
    """A port of this machine that leads into a container, until it is closed."""

    def __init__(
        self,
        service: calls.Calls,
        path: str,
        params: dict[str, str],
        *,
        address: str = "127.0.0.1",
        local: int = 0,
        report: Report = ignore,
    ) -> None:
        """Listen, and carry connections from now on.

        Args:   path: of the container's port, `/v1/containers/NAME/ports/8888`.   local: port to listen on; 0: any free
                one.   report: told why a connection could not be carried.
        Raises: Unavailable (`PortTaken`): nothing can listen there.
        """
        self._service, self._path, self._params, self._report = service, path, params, report
        try:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            self._listener = socket.create_server((address, local), family=family, backlog=_AHEAD)
            self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
        except (OSError, OverflowError) as error:
            message = f"cannot listen on {address} port {local}: {error}"
            hint = "choose another local port; 0 takes any that is free"
            raise errors.Unavailable(message, reason="PortTaken", hint=hint) from error
        self._host, self._port = self._listener.getsockname()[:2]
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name="forward", daemon=True)
        self._accepting.start()

    @property
    def port(self) -> int:
        """The port of this machine."""
        return int(self._port)

    @property
    def address(self) -> str:
        """Host and port, as an address has them."""
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    def close(self) -> None:
        """Stop listening and end what is carried; idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the one that accepts
        self._listener.close()
        with self._guard:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for thread in self._threads:
            thread.join()

    def __enter__(self) -> Self:
        """Use it for a block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self.close()

    def __repr__(self) -> str:
        """Name both ends."""
        return f"<{self.address} leads to {self._path}>"

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self._threads = [one for one in self._threads if one.is_alive()]
            thread = threading.Thread(target=self._carry, args=(taken,), name="forwarded", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _carry(self, taken: socket.socket) -> None:
        with taken:
            with self._guard:
                self._open.add(taken)
            try:
                with self._service.connect(self._path, list(self._params.items())) as session:
                    sender = threading.Thread(target=_send, args=(taken, session), daemon=True)
                    sender.start()
                    try:
                        _receive(taken, session)
                    finally:
                        with contextlib.suppress(OSError):
                            taken.shutdown(socket.SHUT_RDWR)
                        sender.join()
            except errors.FairleadError as error:
                self._report(error)
            finally:
                with self._guard:
                    self._open.discard(taken)


def _send(taken: socket.socket, session: transport.Session) -> None:
    """Carry what the local program sends; its end ends the connection, as a WebSocket has no half-close."""
    with contextlib.suppress(OSError):
        while data := taken.recv(_CHUNK):
            session.send(data)
    session.send(json.dumps({"eof": True}))


def _receive(taken: socket.socket, session: transport.Session) -> None:
    """Carry what the container sends. Raises: what the service's last word says."""
    for frame in session.frames():
        if isinstance(frame, bytes):
            try:
                taken.sendall(frame)
            except OSError:
                session.send(json.dumps({"eof": True}))
            continue
        last: Any = json.loads(frame)
        if "problem" in last:
            raise problem.error_of(msgspec.convert(last["problem"], problem.Problem))
