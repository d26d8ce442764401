"""Carries the streams of a process over a WebSocket, for `exec`, `run` and `cp`.

One thread reads what the process writes; the main thread waits for the keyboard, for the terminal's size to change and
for the process's end, on one `select`. With a terminal on both sides ours is raw while it lasts and restored whatever
happens, so that Ctrl-C and the like reach the process and not us.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import select
import shutil
import signal
import stat
import struct
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from fairlead import errors
from fairlead.cli.core import plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.terminal import unbuffered
from fairlead.cli.core.terminal.replay import Replay
from fairlead.client import transport
from fairlead.client.session import process
from fairlead.client.session.standstill import LIMIT_S, Standstill

_CHUNK: Final = 1 << 16
_ENDED: Final = b"e"
_RESIZED: Final = b"r"
_DETACH: Final = b"\x10\x11"
"""Ctrl-P Ctrl-Q, docker's keys."""


class Detached(Exception):
    """Raised where the detach keys were typed: the process goes on without us."""


class DetachKeys:
    """Finds the detach keys in what is typed, also where they come one by one."""

    def __init__(self) -> None:
        """Begin with no key."""
        self._held = b""

    def passed(self, data: bytes) -> bytes:
        """Return what is for the process; a Ctrl-P at the end waits for the next key. Raises: Detached."""
        typed = self._held + data
        if _DETACH in typed:
            raise Detached
        self._held = typed[-1:] if data and typed.endswith(_DETACH[:1]) else b""
        return typed.removesuffix(self._held) if self._held else typed


@dataclass(slots=True)
class Session:
    """One process, its socket opened with `split`."""

    connection: transport.Session
    wakes: tuple[int, int] = field(default_factory=os.pipe)
    last: dict[str, Any] | None = None
    """The service's closing frame."""
    failure: OSError | None = None
    """Why output could not be written, a closed pipe for one."""
    replay: Replay | None = None
    """What was written before, of an output that comes from its beginning; None: all of it is new."""
    still: Standstill | None = None
    """Gets told of traffic, in order to report a standstill; None: none is reported."""


def warn_of_unread_input() -> None:
    """Say on standard error that a pipe into this program still holds data: without `-i` it is not passed on."""
    try:
        descriptor = sys.stdin.fileno()
        if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return
        (waiting,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)))
    except (AttributeError, OSError, io.UnsupportedOperation):
        return  # it is closed, or a program called us with something else
    if waiting:
        plaintext.echo("warning: standard input was not read; with -i it is passed on", err=True)


def carry(session: Session, *, stdin: bool, terminal: bool, detaches: bool = False) -> int:
    """Carry the streams until the process ends; return its exit code.

    Args:    detaches: at a terminal Ctrl-P Ctrl-Q leaves the process running.
    Raises:  Detached: so it was left; what the service's problem says.
    """
    reader = threading.Thread(target=_read, args=(session,), name="process-output", daemon=True)
    is_raw = stdin and terminal and sys.stdin.isatty()
    with _raw_terminal() if is_raw else contextlib.nullcontext():
        with _size_changes(session) if terminal and sys.stdout.isatty() else contextlib.nullcontext():
            reader.start()
            with session.still.watched() if session.still is not None else contextlib.nullcontext():
                _write(session, stdin=stdin, keys=DetachKeys() if is_raw and detaches else None)
        reader.join()
    for end in session.wakes:
        os.close(end)
    if session.failure is not None:
        raise session.failure
    return process.exit_code(session.last)


def warn_of_standstill(client: Client) -> Callable[[], None]:
    """Return what says that a process neither takes input nor says anything, where its end may go untold."""

    def say() -> None:
        with contextlib.suppress(errors.FairleadError):
            if client.status().node:
                return  # one machine, whose service always reports the end
        unbuffered.say(_STANDS)

    return say


_STANDS: Final = (
    f"note: for {LIMIT_S:.0f} s the process has taken no input and said nothing. It may be at\n"
    "      work, or have ended: Kubernetes does not always tell the end of a program\n"
    "      that left its input unread. Ctrl-C ends this wait."
)


def _read(session: Session) -> None:
    try:
        for frame in session.connection.frames():
            if session.still is not None:
                session.still.moved()
            if isinstance(frame, bytes):
                _show(frame if session.replay is None else session.replay.fresh(frame))
            else:
                session.last = json.loads(frame)
    except OSError as error:
        session.failure = error
    finally:
        os.write(session.wakes[1], _ENDED)


def _show(frame: bytes) -> None:
    """Write what a frame holds to the stream that its first byte names."""
    unbuffered.write(sys.stderr if frame[:1] == process.ERRORS else sys.stdout, frame[1:])


def _write(session: Session, *, stdin: bool, keys: DetachKeys | None) -> None:
    """Pass keys and sizes on until the process ends. Raises: Detached."""
    keyboard = sys.stdin.fileno() if stdin else None
    wake = session.wakes[0]
    if not stdin:
        session.connection.send(process.END_OF_INPUT)
    while True:
        ready, _, _ = select.select([wake] if keyboard is None else [wake, keyboard], [], [])
        if wake in ready:
            if _ENDED in (signals := os.read(wake, 64)):
                return
            if _RESIZED in signals:
                _send_size(session)
        elif keyboard is not None:
            data = os.read(keyboard, _CHUNK)
            typed = data if keys is None else keys.passed(data)
            if data and not typed:
                continue
            with session.still.sending() if session.still is not None else contextlib.nullcontext():
                session.connection.send(typed if typed else process.END_OF_INPUT)
            keyboard = keyboard if data else None
            if session.still is not None and not data:
                session.still.sent()


def _send_size(session: Session) -> None:
    size = shutil.get_terminal_size()
    session.connection.send(json.dumps({"resize": {"rows": size.lines, "columns": size.columns}}))


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        tty.setraw(handle, termios.TCSADRAIN)  # what was typed ahead is for the process
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


@contextlib.contextmanager
def _size_changes(session: Session) -> Iterator[None]:
    """Send the terminal's size now and whenever it changes."""

    def changed(*_: object) -> None:
        os.write(session.wakes[1], _RESIZED)

    before = signal.signal(signal.SIGWINCH, changed)
    changed()
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
