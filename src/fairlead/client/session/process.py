"""Runs one more process in a container to its end, and keeps what it wrote."""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from fairlead import errors
from fairlead.client import calls, transport
from fairlead.wire.fairlead import problem

CHUNK: Final = 1 << 16
END_OF_INPUT: Final = json.dumps({"eof": True})
"""Frame that ends the process's standard input."""
ERRORS: Final = b"\x02"
"""First byte of a frame of standard error, where the streams were asked for apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How a process in a container ended, and what it wrote."""

    exit_code: int
    output: bytes
    """Its standard output."""
    errors: bytes
    """Its standard error."""

    @property
    def text(self) -> str:
        """Standard output as text; bytes that are not UTF-8 are replaced."""
        return self.output.decode(errors="replace")

    def _repr_html_(self) -> str:
        ended = "" if not self.exit_code else f"<p>exit code {self.exit_code}</p>"
        wrong = f"<pre>{html.escape(self.errors.decode(errors='replace'))}</pre>" if self.errors else ""
        return f"<pre>{html.escape(self.text)}</pre>{wrong}{ended}"


def run(service: calls.Calls, path: str, params: Sequence[tuple[str, str]], stdin: bytes) -> ExecResult:
    """Run a process at a container's `exec` path, feed it its input, and return its end.

    Raises: as `Calls.connect`; what the service's last word says; Unavailable (`ServiceBrokeOff`).
    """
    output, wrong = bytearray(), bytearray()
    last: Any = None
    with service.connect(path, params) as session:
        _feed(session, stdin)
        for frame in session.frames():
            if isinstance(frame, str):
                last = json.loads(frame)
            else:
                (wrong if frame[:1] == ERRORS else output).extend(frame[1:])
    return ExecResult(exit_code=exit_code(last), output=bytes(output), errors=bytes(wrong))


def exit_code(last: Any) -> int:
    """Return the exit code in a session's closing frame. Raises: what it says; Unavailable (`ServiceBrokeOff`)."""
    if last is None:
        message = "the service ended the session before the process ended: it restarted, or the connection was cut"
        hint = "a process of `exec` ends with its session: run it again once `fairlead status` answers"
        raise errors.Unavailable(message, reason="ServiceBrokeOff", hint=hint)
    if "problem" in last:
        raise problem.error_of(msgspec.convert(last["problem"], problem.Problem))
    return int(last["exit_code"])


def _feed(session: transport.Session, data: bytes) -> None:
    """Send the input from a thread of its own, which ends with the session.

    A process may write more than any buffer holds before it reads, or read nothing at all.
    """

    def feed() -> None:
        for start in range(0, len(data), CHUNK):
            session.send(data[start : start + CHUNK])
        session.send(END_OF_INPUT)

    threading.Thread(target=feed, name="process-input", daemon=True).start()
