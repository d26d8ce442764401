"""Runs one more process in a running container by `podman exec`: its streams, its terminal, its end.

With a terminal, podman gets the inner side of one of ours and keeps the container's own terminal in step with it: we
set the size (TIOCSWINSZ) and send SIGWINCH, podman passes it on. Without one, podman gets pipes, output and errors in
one each.

Killing `podman exec` leaves the process in the container running, and podman 4 has no way to end it. So each session
carries a variable of its own, `FAIRLEAD_EXEC`, and whatever in the container's cgroup still has it is killed.

Variables go to podman by a file in memory, since every account of the machine may read podman's command line. Those
that no line of a file can hold (a value with a line break) are arguments.
"""

from __future__ import annotations

import asyncio
import asyncio.subprocess
import contextlib
import fcntl
import os
import signal
import struct
import termios
import time
import tty as terminal
from pathlib import Path
from typing import Final

from fairlead import command, files, pipe
from fairlead.model.container.output import ErrorOutput

MARK: Final = "FAIRLEAD_EXEC"
_END_OF_TRANSMISSION: Final = b"\x04"
_KILLED: Final = 128 + signal.SIGKILL


class Variables:
    """A file of variables in memory, which root alone may open; it is there until it is closed."""

    def __init__(self, lines: bytes) -> None:
        """Write it."""
        self._file = os.fdopen(os.memfd_create("env", os.MFD_CLOEXEC), "wb")
        self._file.write(lines)
        self._file.flush()
        self.path: Final = f"/proc/{os.getpid()}/fd/{self._file.fileno()}"

    def close(self) -> None:
        """Give it up; idempotent."""
        self._file.close()


class PodmanExec:
    """`port.ExecSession` over a `podman exec` process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        *,
        output: pipe.Pipe,
        failures: pipe.Pipe | None,
        feed: pipe.Pipe | None,
        has_terminal: bool,
        mark: str,
        pid: int | None,
        variables: Variables | None,
    ) -> None:
        self._process = process
        self._variables = variables
        self._output = output
        self._failures = failures
        self._left = [one for one in (output, failures) if one is not None]
        """Outputs that have not ended."""
        self._input = feed
        self._has_terminal = has_terminal
        self._mark = mark
        self._pid = pid
        self._was_cut_off = False
        """Whether it was closed while it ran."""

    async def read(self) -> bytes:
        """See `port.ExecSession.read`."""
        while self._left:
            number, data = await pipe.read_any(self._left)
            if data:
                return ErrorOutput(data) if self._left[number] is self._failures else data
            del self._left[number]
        return b""

    async def write(self, data: bytes) -> None:
        """See `port.ExecSession.write`."""
        if self._input is None:
            return
        if data or self._has_terminal:
            await self._input.write(data or _END_OF_TRANSMISSION)
        else:
            self._input.close()

    async def resize(self, rows: int, columns: int) -> None:
        """See `port.ExecSession.resize`."""
        if self._has_terminal and self._process.returncode is None:
            fcntl.ioctl(self._output.descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGWINCH)

    async def wait(self) -> int:
        """See `port.ExecSession.wait`."""
        code = await self._process.wait()
        # podman says 0 where it was ended before its program began
        return _KILLED if self._was_cut_off and not code else code

    async def close(self) -> None:
        """See `port.ExecSession.close`."""
        is_running = self._process.returncode is None
        self._was_cut_off = self._was_cut_off or is_running
        self._output.close()
        if self._failures is not None:
            self._failures.close()
        if self._input is not None:
            self._input.close()
        if is_running and self._pid is not None:
            await asyncio.to_thread(end_marked, self._pid, self._mark)
        await command.end(self._process)
        if self._variables is not None:
            self._variables.close()


async def open_session(
    argv: list[str],
    *,
    env: dict[str, str],
    tty: bool,
    stdin: bool,
    mark: str,
    pid: int | None,
    variables: Variables | None = None,
) -> PodmanExec:
    """Start `podman exec` on a terminal or on pipes.

    Args:    mark: value of the variable `MARK` in the process.   pid: the container's first process, on the host.
             variables: the file that `argv` names; closed with the session, or where there is none.
    Raises:  Unavailable: podman is not installed.
    """
    if tty:
        ours, theirs = os.openpty()
        # What is written before podman takes over must reach the container's terminal as it is.
        terminal.setraw(theirs)
        feed = pipe.Pipe(os.dup(ours)) if stdin else None
        inner, given = theirs, [theirs]
        failures, their_failures = None, None
    else:
        ours, theirs = os.pipe()
        inner, ours_in = os.pipe() if stdin else (os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1)
        feed = pipe.Pipe(ours_in) if stdin else None
        our_failures, their_failures = os.pipe()
        failures = pipe.Pipe(our_failures)
        given = [inner, theirs, their_failures]
    output = pipe.Pipe(ours)
    try:
        process = await command.started(argv, env=env, stdin=inner, output=theirs, failures=their_failures)
    except BaseException:
        if variables is not None:
            variables.close()
        output.close()
        if failures is not None:
            failures.close()
        if feed is not None:
            feed.close()
        raise
    finally:
        for descriptor in given:
            os.close(descriptor)
    return PodmanExec(
        process, output=output, failures=failures, feed=feed, has_terminal=tty, mark=mark, pid=pid, variables=variables
    )


def end_marked(pid: int, mark: str) -> None:
    """Kill marked processes until none is left: one may be forking while we look, and a killed one needs time to go."""
    for _ in range(_LOOKS):
        if not kill_marked(pid, mark):
            return
        time.sleep(_LOOK_S)


_LOOKS: Final = 500
_LOOK_S: Final = 0.01
_MOST_ENVIRONMENT: Final = 6 << 20
"""Bytes of words and environment together with which Linux starts a program at most (fs/exec.c)."""


def kill_marked(pid: int, mark: str, *, root: Path = Path("/")) -> int:
    """Kill every process beside `pid` (same pid namespace) whose environment carries the mark; returns how many."""
    wanted = f"{MARK}={mark}".encode()
    count = 0
    for folder in (root / "proc").glob("[0-9]*"):
        number = int(folder.name)
        try:
            if number != pid and _beside(pid, folder) and wanted in _environment(folder):
                os.kill(number, signal.SIGKILL)
                count += 1
        except (OSError, ProcessLookupError):
            continue  # ended while we looked
    return count


def _environment(folder: Path) -> list[bytes]:
    return files.read_beginning(folder / "environ", limit_bytes=_MOST_ENVIRONMENT).split(b"\0")


def _beside(pid: int, folder: Path) -> bool:
    return (folder / "ns/pid").readlink() == (folder.parent / str(pid) / "ns/pid").readlink()
