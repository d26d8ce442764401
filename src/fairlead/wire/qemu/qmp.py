"""Speaks QMP: the JSON lines by which QEMU is asked and says what happens to its machine.

A session begins with QEMU's greeting; the first command ends the negotiation of capabilities. Each command has an id,
which its answer repeats; events come between answers.
Source: QEMU docs/interop/qmp-spec.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.wire.text import typedjson

LONGEST: Final = 1 << 20
"""Bytes of one line; QEMU's own lines have a few hundred."""
NEGOTIATED: Final = "qmp_capabilities"
_SHOWN: Final = 200


class _Line(msgspec.Struct):
    """Any line of QEMU's."""

    greeting: dict[str, Any] | None = msgspec.field(default=None, name="QMP")
    answer: Any = msgspec.field(default=msgspec.UNSET, name="return")
    error: dict[str, Any] | None = None
    event: str | None = None
    data: dict[str, Any] = {}
    id: Any = None


_DECODER: Final = typedjson.Decoder(_Line)


@frozen
class Greeting:
    """The first line."""

    version: str
    """11.1.3."""


@frozen
class Answer:
    """What came of a command."""

    id: int
    value: object
    failure: str = ""
    """QEMU's words where it refused; empty: it was carried out."""


@frozen
class Event:
    """Something that happened to the machine."""

    name: str
    """SHUTDOWN, GUEST_PANICKED, …."""
    reason: str = ""
    """`guest-shutdown`, `host-qmp-quit`, …; empty: the event has none."""


def emit_command(name: str, number: int) -> bytes:
    """Return one command's line. Args: number: repeated by its answer."""
    return json.dumps({"execute": name, "id": number}).encode() + b"\n"


def parse_line(line: bytes) -> Greeting | Answer | Event | None:
    """Return what a line says; None: an answer without an id, to something that was no command.

    Raises: ProtocolError (`QMPMalformed`): not QMP.
    """
    try:
        found = _DECODER.decode(line)
    except msgspec.MsgspecError as error:
        raise _malformed(line, str(error)) from error
    if found.greeting is not None:
        return Greeting(version=_version(found.greeting))
    if found.event is not None:
        reason = found.data.get("reason", "")
        return Event(name=_shown(found.event), reason=_shown(reason) if isinstance(reason, str) else "")
    if found.error is None and found.answer is msgspec.UNSET:
        raise _malformed(line, "neither greeting, answer nor event")
    if not isinstance(found.id, int):
        return None
    failure = "" if found.error is None else _shown(str(found.error.get("desc", ""))) or "no reason given"
    return Answer(id=found.id, value=None if found.error is not None else found.answer, failure=failure)


def _version(greeting: dict[str, Any]) -> str:
    numbers: object = greeting.get("version", {})
    numbers = numbers.get("qemu", {}) if isinstance(numbers, dict) else {}
    found = [numbers.get(part) for part in ("major", "minor", "micro")] if isinstance(numbers, dict) else []
    return ".".join(str(one) for one in found if isinstance(one, int))


def _shown(text: str) -> str:
    return "".join(one if one.isprintable() else " " for one in text[:_SHOWN]).strip()


def _malformed(line: bytes, why: str) -> errors.ProtocolError:
    text = _shown(line.decode(errors="replace"))
    hint = "the emulator that node.vm names is no QEMU, or a newer one"
    return errors.ProtocolError(f"not a line of QMP ({why}): {text!r}", reason="QMPMalformed", hint=hint)
