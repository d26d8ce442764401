"""Adds finalizers to an object as an API server keeps it, without reading the rest of it.

An API server compares what a claim hands to its driver (`opaque.parameters`) byte by byte, and a client that writes
JSON cannot keep the blanks of another's: every update of such a claim is refused as a change of its immutable spec.
In protobuf these bytes stay as they are; what is appended to a message is merged into it, so a finalizer is added by
appending metadata that has nothing else.
Source: apimachinery pkg/runtime/generated.proto (Unknown), pkg/apis/meta/v1/generated.proto (ObjectMeta, finalizers
14); Kubernetes API reference, "Kubernetes Protobuf encoding"; protobuf.dev, encoding ("last one wins", merging).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from fairlead import errors

CONTENT: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"
_METADATA, _FINALIZERS, _RAW, _BYTES = 1, 14, 2, 2
"""Fields `metadata` of an object, `finalizers` of metadata, `raw` of the envelope; the wire type of bytes."""


def with_finalizers(body: bytes, names: Iterable[str]) -> bytes:
    """Return an object's body with finalizers added. Raises: ProtocolError: no body of Kubernetes' protobuf."""
    if not body.startswith(_MAGIC):
        raise errors.ProtocolError("the answer is not Kubernetes' protobuf", reason="ObjectUnreadable")
    added = _field(_METADATA, b"".join(_field(_FINALIZERS, name.encode()) for name in names))
    fields = [_field(number, value + added if number == _RAW else value) for number, value in _fields(body[4:])]
    return _MAGIC + b"".join(fields)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the fields of a message that has fields of bytes alone, as the envelope does. Raises: ProtocolError."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        size, at = _varint(message, at)
        if key & 7 != _BYTES or at + size > len(message):
            raise errors.ProtocolError("the answer's envelope cannot be read", reason="ObjectUnreadable")
        yield key >> 3, message[at : at + size]
        at += size


def _field(number: int, value: bytes) -> bytes:
    return _encoded(number << 3 | _BYTES) + _encoded(len(value)) + value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(message) and shift < 64:
        byte = message[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
    raise errors.ProtocolError("the answer's envelope is cut off", reason="ObjectUnreadable")


def _encoded(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
