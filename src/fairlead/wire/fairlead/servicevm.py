"""Declares what a Service VM and its host tell each other on the machine's port: one line of JSON each.

The host says first, once: the secret by which both will prove themselves to each other, and on which port of vsock the
agent listens. It is on no command line, on no disk and in no variable. Then the guest says every few seconds that its
agent lives. What it says is data, typed and small.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from fairlead import errors
from fairlead.wire.text import typedjson

VERSION: Final = "fairlead.service-vm/1"
LONGEST: Final = 1 << 14
"""Bytes of a line."""
MALFORMED: Final = "ServiceVMMalformed"
_Port = Annotated[int, msgspec.Meta(ge=1, lt=2**32 - 1)]


class Hello(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the host says."""

    version: Literal["fairlead.service-vm/1"] = VERSION
    secret: Annotated[str, msgspec.Meta(pattern=r"\A(?:[0-9a-f]{2}){32,4096}\Z")]
    """In hexadecimal."""
    port: _Port


class Beat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the guest says."""

    version: Literal["fairlead.service-vm/1"] = VERSION
    beat: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    """Counts up."""


_HELLO: Final = typedjson.Decoder(Hello)
_BEAT: Final = typedjson.Decoder(Beat)


def emit(said: Hello | Beat) -> bytes:
    """Return the line, with its end."""
    return msgspec.json.encode(said) + b"\n"


def parse_hello(line: bytes) -> Hello:
    """Return what the host says. Raises: ProtocolError (`ServiceVMMalformed`)."""
    try:
        return _HELLO.decode(line)
    except msgspec.MsgspecError as error:
        # Its words may repeat the secret: they are not shown.
        message = "the host of this machine said what no host of a Service VM says"
        hint = "start this machine by `fairlead fabric machine` of the same version"
        raise errors.ProtocolError(message, reason=MALFORMED, hint=hint) from error


def parse_beat(line: bytes) -> Beat:
    """Return what the guest says. Raises: ProtocolError (`ServiceVMMalformed`)."""
    try:
        return _BEAT.decode(line)
    except msgspec.MsgspecError as error:
        message = "the Service VM said what is no sign of life"
        hint = "its image starts another version of `fairlead fabric serve --machine-port`: build it again"
        raise errors.ProtocolError(message, reason=MALFORMED, hint=hint) from error
