"""Frames between the stand-in and the agent in its machine; `agent.c` says what each kind means."""

from __future__ import annotations

import socket
import struct
from typing import Final

_HEAD: Final = struct.Struct("<IBI")
LARGEST: Final = 64 << 10


class Ended(Exception):
    """The other end is gone."""


def send(peer: socket.socket, channel: int, kind: str, payload: bytes = b"") -> None:
    """Write a frame. Raises: Ended; ValueError: it is too large."""
    if len(payload) > LARGEST:
        raise ValueError(f"a frame of {len(payload)} bytes")
    try:
        peer.sendall(_HEAD.pack(channel, ord(kind), len(payload)) + payload)
    except OSError as error:
        raise Ended from error


def receive(peer: socket.socket) -> tuple[int, str, bytes]:
    """Return a frame's channel, kind and payload. Raises: Ended; TimeoutError."""
    channel, kind, size = _HEAD.unpack(_exactly(peer, _HEAD.size))
    if size > LARGEST:
        raise Ended
    return channel, chr(kind), _exactly(peer, size)


def strings(*words: str) -> bytes:
    """Return words as the agent takes them."""
    return b"".join(word.encode() + b"\0" for word in words)


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        try:
            part = peer.recv(size - len(data))
        except TimeoutError:
            raise
        except OSError as error:
            raise Ended from error
        if not part:
            raise Ended
        data += part
    return data
