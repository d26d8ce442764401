"""Asks the standard gRPC health service over a connection that is open already.

The library of gRPC opens its own connections, and only in this process's network. One question needs so little of
HTTP/2 that it is written here: a request of literal headers, and the answer's data. Headers of the answer are not read,
since a service that is well always sends data.
Source: RFC 9113, sections 3.4, 4.1, 6.1, 6.2, 6.5, 6.7; RFC 7541, section 6.2.2; grpc/grpc doc/PROTOCOL-HTTP2.md;
grpc/grpc-proto grpc/health/v1/health.proto.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Final

_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY = 0, 1, 3, 4, 6, 7
_END_STREAM, _END_HEADERS, _PADDED, _ACK = 1, 4, 8, 1
_LARGEST_FRAME: Final = 1 << 14
_MOST_FRAMES: Final = 200
_SERVING: Final = 1
_STATES: Final = {0: "UNKNOWN", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def request(service: str, authority: str) -> bytes:
    """Return the bytes of one question to `grpc.health.v1.Health/Check`."""
    headers = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "kube-probe"),
    )
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in headers)
    name = service.encode()
    message = b"\x0a" + _varint(len(name)) + name if name else b""
    body = b"\0" + struct.pack(">I", len(message)) + message
    return (
        _PREFACE
        + _frame(_SETTINGS, 0, 0, b"")
        + _frame(_HEADERS, _END_HEADERS, 1, block)
        + _frame(_DATA, _END_STREAM, 1, body)
    )


async def check(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: str, authority: str) -> str:
    """Ask; return what is wrong, empty where the service is serving. Raises: OSError, EOFError: the connection ends."""
    writer.write(request(service, authority))
    await writer.drain()
    data = b""
    for _ in range(_MOST_FRAMES):
        head = await reader.readexactly(9)
        length, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
        if length > _LARGEST_FRAME:
            return "the answer is not gRPC"
        payload = await reader.readexactly(length)
        if kind == _SETTINGS and not flags & _ACK:
            writer.write(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            writer.write(_frame(_PING, _ACK, 0, payload))
        elif kind in {_RESET, _GOAWAY}:
            return "the server refused the call"
        elif kind == _DATA and stream == 1:
            data += payload[1 : len(payload) - payload[0]] if flags & _PADDED and payload else payload
        if len(data) >= 5 and len(data) >= 5 + int.from_bytes(data[1:5], "big"):
            return _judged(data[5 : 5 + int.from_bytes(data[1:5], "big")])
        if flags & _END_STREAM and kind in {_DATA, _HEADERS} and stream == 1:
            return "the server has no health service, or does not know this one"
    return "the answer does not end"


def _judged(message: bytes) -> str:
    """Return what is wrong by a HealthCheckResponse, whose one field is the status."""
    status = message[1] if len(message) >= 2 and message[0] == 0x08 else 0
    return "" if status == _SERVING else f"the service is {_STATES.get(status, status)}"


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def _text(text: str) -> bytes:
    """Return a string of HPACK without Huffman's code."""
    raw = text.encode()
    if len(raw) < 127:
        return bytes((len(raw),)) + raw
    return b"\x7f" + _varint(len(raw) - 127) + raw


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, as both protobuf and HPACK's continuation have it."""
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*found, number))
