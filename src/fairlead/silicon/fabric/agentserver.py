"""Serves a Fabric Manager's calls to the host of its Service VM: `fairlead fabric serve`.

A connection has a thread; calls of all of them go one after the other through one connection to the Manager, each with
a limit, so that neither a Manager that hangs nor a client that floods holds up more than its own call. Who does not
prove within seconds that it has the secret is cut off, and so is who sends a frame that is not its next. There are few
places, for clients that have proved it. Who has not waits apart, where the newest pushes out the oldest: by vsock every
process of the host may knock, a tenant's too, and must not keep the agent out. The log has one line a while of those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, assert_never

from fairlead import daemonthread, errors, telemetry
from fairlead.frozen import frozen
from fairlead.silicon.fabric import frame, message
from fairlead.silicon.fabric.address import Address, Kind
from fairlead.silicon.fabric.connection import Connection
from fairlead.silicon.fabric.port import FabricManager

_PLACES: Final = 8
_WAITING: Final = 64
"""Connections that have proved nothing yet."""
_SAID_S: Final = 10.0
"""Between two lines about clients that were turned away: who floods must not fill the log."""
_GREETING_S: Final = 5.0
_IDLE_S: Final = 300.0


def _unknown() -> str:
    return ""


@frozen
class Whereabouts:
    """What tells where the Manager runs and what it is; each is asked again for every answer."""

    machine: Callable[[], str] = _unknown
    """Returns the boot id of this machine."""
    version: Callable[[], str] = _unknown
    """Returns the Manager's version; empty: nothing tells it."""


class AgentServer:
    """A listening socket and the threads of its connections."""

    def __init__(
        self,
        manager: Connection,
        secret: bytes,
        *,
        timeout_s: float,
        is_allowed: Callable[[socket.socket], bool],
        whereabouts: Whereabouts | None = None,
        greeting_s: float = _GREETING_S,
    ) -> None:
        """Do nothing yet.

        Args: timeout_s: for one call.   is_allowed: says by the kernel's word who may knock.
              whereabouts: of the Manager; None: neither machine nor version is known.
        """
        self._whereabouts = whereabouts or Whereabouts()
        self._manager, self._secret, self._timeout_s = manager, secret, timeout_s
        self._is_allowed, self._greeting_s = is_allowed, greeting_s
        self._places = threading.BoundedSemaphore(_PLACES)
        self._waiting: dict[socket.socket, None] = {}
        self._lock = threading.Lock()
        self._turned, self._said_at = 0, -_SAID_S
        self._listener: socket.socket | None = None

    def listen(self, address: Address) -> None:
        """Listen. Raises: Invalid: TCP is not served; Unavailable: it cannot be listened there, or another one does."""
        if address.kind is Kind.INET:
            text = f"{address} is TCP, which whoever reaches it may use"
            raise errors.Invalid(text, reason="FabricAddressInvalid", hint="PATH or CID:PORT of vsock")
        try:
            self._listener = _listen(address)
        except OSError as error:
            text = f"cannot listen on {address}: {(error.strerror or str(error)).lower()}"
            raise errors.Unavailable(text, reason="FabricAgentSocket") from error
        daemonthread.start("fabric-accept", self._accept, ended=lambda: None)

    def close(self) -> None:
        """Take no further connection."""
        if self._listener is not None:
            with contextlib.suppress(OSError):  # wakes the thread that accepts
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def _accept(self) -> None:
        listener = self._listener
        while listener is not None:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            if not self._may_knock(one):
                self._turn_away("NotAllowed")
                one.close()
                continue
            self._let_wait(one)
            try:
                daemonthread.start("fabric-client", functools.partial(self._serve, one), ended=lambda: None)
            except RuntimeError:
                self._stop_waiting(one)
                one.close()

    def _may_knock(self, one: socket.socket) -> bool:
        try:
            return self._is_allowed(one)
        except OSError:  # it has gone already
            return False

    def _let_wait(self, one: socket.socket) -> None:
        """Note a connection that has proved nothing; the oldest makes room for it."""
        with self._lock:
            oldest = next(iter(self._waiting)) if len(self._waiting) >= _WAITING else None
            if oldest is not None:
                del self._waiting[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and closes it
            self._waiting[one] = None
        if oldest is not None:
            self._turn_away("TooMany")

    def _stop_waiting(self, one: socket.socket) -> bool:
        """Return whether a connection was waiting still."""
        with self._lock:
            was_waiting = one in self._waiting
            self._waiting.pop(one, None)
        return was_waiting

    def _turn_away(self, reason: str, error: str = "") -> None:
        """Count a client that is not served, and say so once in a while."""
        with self._lock:
            self._turned += 1
            now, count = time.monotonic(), self._turned
            if now - self._said_at < _SAID_S:
                return
            self._said_at, self._turned = now, 0
        said = {"error": error} if error else {}
        telemetry.log.warning("fabric client turned away", reason=reason, count=count, **said)

    def _serve(self, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError, EOFError):
            try:
                channel = frame.accept(one, self._secret, limit_s=self._greeting_s)
            except errors.FairleadError as error:
                self._turn_away(error.reason, error.message)
                return
            finally:
                is_expected = self._stop_waiting(one)
            if is_expected and self._places.acquire(blocking=False):
                try:
                    self._answer_calls(one, channel)
                finally:
                    self._places.release()
            else:
                self._turn_away("TooMany")

    def _answer_calls(self, one: socket.socket, channel: frame.Channel) -> None:
        """Answer a client that has the secret, until it ends. Raises: OSError; EOFError."""
        one.settimeout(_IDLE_S)
        try:
            while True:
                channel.send(message.encode(self._answer(message.parse_request(channel.receive()))))
        except errors.FairleadError as error:
            telemetry.log.warning("fabric client cut off", reason=error.reason, error=error.message)

    def _answer(self, request: message.Request) -> message.Answer:
        try:
            found = self._manager.run_here(lambda manager: _do(manager, request), timeout_s=self._timeout_s)
            return self._with_identity(found) if request.call == "identify" else found
        except errors.FairleadError as error:
            return message.error_answer(error)

    def _with_identity(self, found: message.Answer) -> message.Answer:
        own = dataclasses.replace(
            message.identity_of(found), machine=self._whereabouts.machine(), version=self._whereabouts.version()
        )
        return message.answer_of(identity=own)


def _do(manager: FabricManager, request: message.Request) -> message.Answer:
    match request.call:
        case "identify":
            return message.answer_of(identity=manager.identify())
        case "list":
            return message.answer_of(partitions=manager.list_partitions())
        case "failed":
            return message.answer_of(failed=manager.list_failed())
        case "unsupported":
            return message.answer_of(unsupported=manager.list_unsupported())
        case "set":
            manager.set_active(request.partitions)
        case "activate" | "deactivate":
            for partition in request.partitions:
                (manager.activate if request.call == "activate" else manager.deactivate)(partition)
        case other:
            assert_never(other)
    return message.Answer()


def _listen(address: Address) -> socket.socket:
    if address.kind is Kind.VSOCK:
        made = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        cid, port = address.host_port
        place: tuple[int, int] | str = (int(cid), port)
    else:
        _remove_dead(address.text)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        place = address.text
    try:
        before = os.umask(0o177)  # of the process: nothing else makes files while it starts
        try:
            made.bind(place)
        finally:
            os.umask(before)
        made.listen(_WAITING)
    except BaseException:
        made.close()
        raise
    return made


def _remove_dead(path: str) -> None:
    """Remove a socket that nobody listens on. Raises: OSError: somebody does."""
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
    raise OSError("another one listens there")
