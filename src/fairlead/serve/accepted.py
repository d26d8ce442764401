"""Counts connections from the moment they are accepted until their socket is closed.

A server counts what it has accepted, not what its protocol has heard of: a client that never ends its TLS handshake
never becomes an HTTP connection, and one that becomes a WebSocket leaves the HTTP protocol without a word. So the count
belongs to the socket. It goes up in `accept` and down when the socket is closed or forgotten, which every way out of a
connection comes to: refused, cancelled, handed to another protocol, killed by the client.

A TLS handshake costs 256 KiB (asyncio.sslproto), so few may be open at once, and each has a limit of its own.
Source: socket(7); asyncio's BaseSelectorEventLoop._accept_connection, which calls `accept` of the socket it was given.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from collections.abc import Callable
from typing import Any, Final

from fairlead.kernel import socketpeer
from fairlead.serve import sockets
from fairlead.serve.limits import address as addresses
from fairlead.serve.limits.places import Places

Holder = int | str
"""A user of this machine, or a network."""
_MOST_AT_ONCE: Final = 128


class Connections:
    """What is open on one listener, by holder, and what of it has not said a word yet."""

    def __init__(self, limits: sockets.Limits, report: Callable[[int], None] = lambda _: None) -> None:
        """Count nothing yet. Args: report: called with how many are open after each change, for a gauge."""
        self.limits = limits
        self.by, self.shaking = Places(report), Places()

    def may_shake(self, holder: Holder) -> bool:
        """Return whether one more handshake may begin."""
        is_room = len(self.shaking) < self.limits.handshakes
        return is_room and self.shaking.of(holder) < self.limits.handshakes_per_address


_METHODS: Final = frozenset(bytes([one]) for one in b"GPHDOTC")
"""How the methods of HTTP begin; a record of TLS begins with another byte."""
_SAID: Final = b"this port speaks TLS: write https:// in place of http://\n"
_PLAIN: Final = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_SAID), _SAID)
)


class Listener(socket.socket):
    """A listening socket whose connections are counted; it takes the place of the one it is made of."""

    def __init__(self, listener: socket.socket, connections: Connections, *, is_tls: bool) -> None:
        """Take over a listening socket. Args: is_tls: whether connections begin with a handshake."""
        super().__init__(fileno=listener.detach())
        self.setblocking(False)
        self.connections, self._is_tls = connections, is_tls

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept one that may go on; others are closed at once. Raises: BlockingIOError: there is none."""
        for _ in range(_MOST_AT_ONCE):
            plain, address = super().accept()
            holder = _holder_of(plain, address)
            if self._is_tls and not self.connections.may_shake(holder):
                plain.close()
                continue
            return Connection(plain, holder, self.connections, is_shaking=self._is_tls), address
        raise BlockingIOError


class Connection(socket.socket):
    """One accepted socket."""

    def __init__(self, plain: socket.socket, holder: Holder, among: Connections, *, is_shaking: bool) -> None:
        """Count it. Args: is_shaking: whether its handshake is awaited."""
        super().__init__(fileno=plain.detach())
        self.holder = holder
        self._is_first = is_shaking
        self._give_back = weakref.finalize(self, among.by.take(holder).give_back)
        self._shaken: weakref.finalize[..., Connection] | None = None
        """Gives its handshake's place back; None: it has none."""
        if is_shaking:
            self._shaken = weakref.finalize(self, among.shaking.take(holder).give_back)
            late = asyncio.get_running_loop().call_later(among.limits.handshake_s, _hang_up, weakref.ref(self))
            weakref.finalize(self, late.cancel)

    @property
    def is_shaking(self) -> bool:
        """Whether its handshake is still awaited."""
        return self._shaken is not None and self._shaken.alive

    def establish(self) -> None:
        """Count it as one that speaks: its handshake has ended."""
        if self._shaken is not None:
            self._shaken()

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        """Read; a plain request where a handshake was awaited is answered in plain words, and has ended."""
        count = super().recv_into(buffer, nbytes, flags)
        if not self._is_first:
            return count
        self._is_first = False
        if memoryview(buffer)[:count].tobytes()[:1] not in _METHODS:
            return count
        with contextlib.suppress(OSError):
            self.send(_PLAIN)
        return 0

    def close(self) -> None:
        """Close it and count it down."""
        self.establish()
        self._give_back()
        super().close()


def _hang_up(which: weakref.ref[Connection]) -> None:
    found = which()
    if found is not None and found.is_shaking:
        try:
            found.shutdown(socket.SHUT_RDWR)  # the transport sees its end, and closes it
        except OSError:
            return


def _holder_of(plain: socket.socket, address: Any) -> Holder:
    if plain.family == socket.AF_UNIX:
        caller = socketpeer.read(plain)
        return -1 if caller is None else caller.uid
    return str(addresses.network(address[0]))


def of(transport: asyncio.BaseTransport) -> Connection | None:
    """Return the counted socket below a transport, TLS or not; None: it was not accepted here."""
    found = getattr(transport.get_extra_info("socket"), "_sock", None)
    return found if isinstance(found, Connection) else None
