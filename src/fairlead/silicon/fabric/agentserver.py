"""Serves a Fabric Manager's calls to the host of its Service VM: `fairlead fabric serve`.

A connection has a thread; calls of all of them go one after the other through one connection to the Manager, each with
a limit, so that neither a Manager that hangs nor a client that floods holds up more than its own call. Who does not
prove within seconds that it has the secret is cut off, and so is who sends a frame that is not its next. There are few
places, and a client that is not allowed in by the kernel's word takes none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import socket
import threading
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
            if not self._is_allowed(one) or not self._places.acquire(blocking=False):
                telemetry.log.warning("fabric client turned away", reason="NotAllowed")
                one.close()
                continue
            try:
                daemonthread.start("fabric-client", functools.partial(self._serve, one), ended=self._places.release)
            except RuntimeError:
                one.close()

    def _serve(self, one: socket.socket) -> None:
        with one, contextlib.suppress(OSError, EOFError):
            try:
                one.settimeout(self._greeting_s)
                channel = frame.accept(one, self._secret)
                one.settimeout(_IDLE_S)
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
        made.listen(_PLACES)
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
