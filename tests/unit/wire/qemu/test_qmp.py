"""QMP's lines as QEMU 7.2 and 11 send them, and what is no QMP."""

from __future__ import annotations

import json

import pytest

from fairlead import errors
from fairlead.wire.qemu import qmp

GREETING = json.dumps(
    {"QMP": {"version": {"qemu": {"micro": 3, "minor": 1, "major": 11}, "package": "Debian"}, "capabilities": ["oob"]}}
).encode()
SHUTDOWN = json.dumps(
    {
        "timestamp": {"seconds": 1, "microseconds": 2},
        "event": "SHUTDOWN",
        "data": {"guest": True, "reason": "guest-shutdown"},
    }
).encode()


def test_the_greeting_has_the_version() -> None:
    assert qmp.parse_line(GREETING) == qmp.Greeting(version="11.1.3")


def test_an_event_has_its_reason() -> None:
    assert qmp.parse_line(SHUTDOWN) == qmp.Event(name="SHUTDOWN", reason="guest-shutdown")


def test_answers_and_refusals_have_the_ids_of_their_commands() -> None:
    assert qmp.parse_line(b'{"return": {"status": "running"}, "id": 7}') == qmp.Answer(
        id=7, value={"status": "running"}
    )
    refused = b'{"id": 8, "error": {"class": "CommandNotFound", "desc": "The command x has not been found"}}'
    assert qmp.parse_line(refused) == qmp.Answer(id=8, value=None, failure="The command x has not been found")
    assert qmp.parse_line(b'{"return": {}}') is None


def test_a_command_is_one_line() -> None:
    line = qmp.emit_command("query-status", 3)
    assert line.endswith(b"\n")
    assert json.loads(line) == {"execute": "query-status", "id": 3}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\xff",
        b"null",
        b"[]",
        b"{}",
        b'{"QMP": 1}',
        b'{"event": 3}',
        b"[" * 100_000,
        b"SSH-2.0-OpenSSH\r",
        b"\x1b[2J",
    ],
    ids=[
        "empty",
        "no text",
        "null",
        "a list",
        "nothing",
        "a number",
        "no name",
        "deep",
        "another protocol",
        "an escape",
    ],
)
def test_what_is_no_qmp_is_refused_without_its_escapes(line: bytes) -> None:
    with pytest.raises(errors.ProtocolError) as refused:
        qmp.parse_line(line)
    assert refused.value.reason == "QMPMalformed"
    assert refused.value.message.isprintable()
    assert len(refused.value.message) < 500


def test_texts_of_an_emulator_that_lies_are_short_and_printable() -> None:
    said = qmp.parse_line(json.dumps({"event": "E\x1b" + "x" * 5000, "data": {"reason": ["no text"]}}).encode())
    assert isinstance(said, qmp.Event)
    assert said.name.isprintable()
    assert len(said.name) <= 200
    assert said.reason == ""
