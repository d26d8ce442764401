"""Frames between the agent beside a Fabric Manager and its clients, and the handshake by which both prove who they are.

Both ends have one secret. The server says a random number; the client says one of its own with a digest of both under
the secret; the server answers with another digest. From then on each frame is a length, a body of JSON and a digest of
its direction, its number and the body, under keys of this connection alone. So neither end can be played without the
secret, and no frame can be changed, sent again, left out or sent back. It is not encrypted: what is said is no secret.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import struct
import time
from typing import Final

from fairlead import errors
from fairlead.frozen import frozen

_MAGIC: Final = b"FAIRLEADFABRIC1\n"
_NONCE: Final = 32
_DIGEST: Final = 32
_LENGTH: Final = struct.Struct(">I")
_NUMBER: Final = struct.Struct(">Q")
LONGEST: Final = 1 << 16
"""Bytes of a body: 64 partitions of 16 GPUs in JSON are less than half of it."""
SHORTEST_SECRET: Final = 32
"""Bytes."""
REFUSED: Final = "FabricAgentRefused"
_OTHER: Final = "both need the same file of fabric.secret"


def _digest(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


@frozen
class _Keys:
    own: bytes
    others: bytes


class Channel:
    """A connection whose two ends have proved that they have the secret."""

    def __init__(self, connected: socket.socket, keys: _Keys) -> None:
        """Begin to count frames."""
        self._socket, self._keys = connected, keys
        self._sent = self._received = 0

    def send(self, body: bytes) -> None:
        """Send one frame. Raises: ProtocolError: it is too long; OSError."""
        if len(body) > LONGEST:
            raise errors.ProtocolError(f"a frame of {len(body)} bytes is too long", reason="FabricFrameTooLong")
        digest = _digest(self._keys.own, _NUMBER.pack(self._sent), body)
        self._sent += 1
        self._socket.sendall(_LENGTH.pack(len(body)) + body + digest)

    def receive(self) -> bytes:
        """Wait for one frame. Raises: ProtocolError: it is not what the other end sends next; EOFError; OSError."""
        (length,) = _LENGTH.unpack(_read(self._socket, _LENGTH.size))
        if length > LONGEST:
            message = f"a frame of {length} bytes was announced, and {LONGEST} are allowed"
            raise errors.ProtocolError(message, reason="FabricFrameTooLong")
        body = _read(self._socket, length)
        said = _read(self._socket, _DIGEST)
        if not hmac.compare_digest(said, _digest(self._keys.others, _NUMBER.pack(self._received), body)):
            message = "a frame is not what the other end sent: it was changed, or sent before"
            raise errors.ProtocolError(message, reason="FabricFrameForged")
        self._received += 1
        return body


def greet(connected: socket.socket, secret: bytes) -> Channel:
    """Do the client's part of the handshake. Raises: Denied: the server does not have the secret; EOFError; OSError."""
    hello = _read(connected, len(_MAGIC) + _NONCE)
    if not hello.startswith(_MAGIC):
        message = "what listens there is no `fairlead fabric serve`"
        raise errors.ProtocolError(message, reason=REFUSED, hint="fabric.agent names its socket")
    nonces = hello[len(_MAGIC) :] + (own := os.urandom(_NONCE))
    connected.sendall(own + _digest(secret, b"client", nonces))
    try:
        proof = _read(connected, _DIGEST)
    except EOFError as error:
        raise errors.Denied("the agent does not accept this secret", reason=REFUSED, hint=_OTHER) from error
    if not hmac.compare_digest(proof, _digest(secret, b"server", nonces)):
        raise errors.Denied("the agent does not have this secret", reason=REFUSED, hint=_OTHER)
    return Channel(connected, _keys(secret, nonces, is_client=True))


def accept(connected: socket.socket, secret: bytes, *, limit_s: float) -> Channel:
    """Do the server's part of the handshake.

    Args:   limit_s: for all of it, however the bytes come.
    Raises: Denied: the client does not have the secret; EOFError; OSError.
    """
    until = time.monotonic() + limit_s
    own = os.urandom(_NONCE)
    connected.settimeout(limit_s)
    connected.sendall(_MAGIC + own)
    nonces = own + _read(connected, _NONCE, until)
    if not hmac.compare_digest(_read(connected, _DIGEST, until), _digest(secret, b"client", nonces)):
        raise errors.Denied("a client does not have the secret", reason=REFUSED, hint=_OTHER)
    connected.sendall(_digest(secret, b"server", nonces))
    return Channel(connected, _keys(secret, nonces, is_client=False))


def _keys(secret: bytes, nonces: bytes, *, is_client: bool) -> _Keys:
    there, back = _digest(secret, b"to server", nonces), _digest(secret, b"to client", nonces)
    return _Keys(own=there, others=back) if is_client else _Keys(own=back, others=there)


def _read(connected: socket.socket, size: int, until: float | None = None) -> bytes:
    """Read so many bytes. Args: until: when that must be over, by the monotonic clock; None: when the socket says."""
    parts, missing = list[bytes](), size
    while missing:
        if until is not None:
            connected.settimeout(max(0.001, until - time.monotonic()))
        part = connected.recv(min(missing, LONGEST))
        if not part:
            raise EOFError
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
