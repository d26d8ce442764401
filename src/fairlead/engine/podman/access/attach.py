"""Talks to the conmon of a running container: its standard input, its terminal's size, and how fast it may write.

conmon listens at `attach` in the container's bundle, a socket of packets. What is sent there is the process's input,
and the end of sending is its end. What the process writes comes back, a packet each with the stream's number first; who
does not take it stops the process. The path may be too long for a socket's address, so it is named by a descriptor of
its folder.
Source: conmon 2.1, src/conn_sock.c and src/ctrl.c; podman 4.3, libpod/oci_conmon_attach_common.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from pathlib import Path
from typing import Final

from fairlead import errors, files

_PACKET: Final = 1 << 16
_CHUNK: Final = 8192
"""conmon's own buffer for input."""
_END_OF_TRANSMISSION: Final = b"\x04"
_DRAINED: Final = 64
"""Packets taken at once, so that a program that writes a lot does not hold the event loop."""
_LOOK_S: Final = 0.02
_RESIZE: Final = 1
FIRST_ROWS: Final = 24
FIRST_COLUMNS: Final = 80
"""A terminal begins with 0 by 0, which programs refuse, until its reader's size comes."""
_NUMBER: Final = struct.Struct("i")


def connect(bundle: Path) -> socket.socket | None:
    """Return a connection to the conmon of a bundle, non-blocking; None: it has ended."""
    try:
        folder = os.open(bundle, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    one.setblocking(False)
    try:
        one.connect(f"/proc/self/fd/{folder}/attach")
    except OSError:
        one.close()
        return None
    finally:
        os.close(folder)
    return one


def set_size(bundle: Path, rows: int, columns: int) -> None:
    """Set a container's terminal size through conmon; does nothing if conmon has ended."""
    with contextlib.suppress(OSError):
        control = os.open(bundle / "ctl", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(control, f"{_RESIZE} {rows} {columns}\n".encode())
        finally:
            os.close(control)


class Throttle:
    """A `logfile.Brake`: takes from conmon what was read from its log, so that it is never far ahead.

    The unread part of what conmon wrote is at most what the socket holds: some 100 KB of output by Linux's default of
    `net.core.wmem_default`, and its next packet.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def held(self) -> int:
        """See `logfile.Brake.held`; the bytes of all packets that wait."""
        answer = fcntl.ioctl(self._connection.fileno(), termios.FIONREAD, _NUMBER.pack(0))
        return int(_NUMBER.unpack(answer)[0])

    def release(self, amount: int) -> None:
        """See `logfile.Brake.release`; waits for nothing."""
        while amount > 0:
            try:
                packet = self._connection.recv(_PACKET)
            except (BlockingIOError, ConnectionError):
                return
            if not packet:
                return
            amount -= len(packet)

    def close(self) -> None:
        """Let conmon run on."""
        self._connection.close()


class ConmonInput:
    """An `access.Input`: packets to conmon.

    Without a terminal the connection is read, and closed once conmon has taken the end of the input: conmon 2.1 frees a
    connection it could not write to at that end, looks into it after, and leaves the process's input open for ever.
    """

    def __init__(self, connection: socket.socket, bundle: Path, *, has_terminal: bool) -> None:
        self._connection = connection
        self._bundle = bundle
        self._has_terminal = has_terminal
        self._is_open = True
        self._has_said_end = False
        # What the process writes is read from the log: what conmon sends here is dropped.
        if has_terminal:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RD)
        else:
            asyncio.get_running_loop().add_reader(connection.fileno(), self._drain)

    async def write(self, data: bytes) -> None:
        """See `access.Input.write`."""
        if not self._is_open:
            return
        if not data and not self._has_terminal:
            self._is_open = False
            self._finish()
            return
        whole = data or _END_OF_TRANSMISSION
        for start in range(0, len(whole), _CHUNK):
            try:
                await asyncio.get_running_loop().sock_sendall(self._connection, whole[start : start + _CHUNK])
            except OSError:
                self._is_open = False  # the process has ended, and its end is reported elsewhere
                return

    def _drain(self) -> None:
        """Drop packets that are there; one byte of each is asked for, and the rest goes with it."""
        try:
            for _ in range(_DRAINED):
                if not self._connection.recv(1):
                    break
            else:
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        asyncio.get_running_loop().remove_reader(self._connection.fileno())  # conmon has ended

    def _finish(self) -> None:
        """Send the end of the input, and close once conmon has taken it; looks again until then."""
        if self._connection.fileno() < 0:
            return
        try:
            if not self._has_said_end:
                self._connection.send(b"")  # an empty packet is an end, and can be seen being taken
                self._has_said_end = True
            is_taken = not _untaken(self._connection)
        except BlockingIOError:
            is_taken = False
        except OSError:
            is_taken = True
        if is_taken:
            asyncio.get_running_loop().remove_reader(self._connection.fileno())
            self._connection.close()
        else:
            asyncio.get_running_loop().call_later(_LOOK_S, self._finish)

    async def resize(self, rows: int, columns: int) -> None:
        """See `access.Input.resize`."""
        if self._has_terminal:
            set_size(self._bundle, rows, columns)

    async def close(self) -> None:
        """See `access.Input.close`."""
        self._is_open = False
        if self._has_terminal:
            self._connection.close()
        else:
            self._finish()


def _untaken(connection: socket.socket) -> int:
    """Return how much of what was sent is still in the kernel."""
    answer = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, _NUMBER.pack(0))
    return int(_NUMBER.unpack(answer)[0])


def lives(pid_file: Path, identity: str) -> bool:
    """Return whether the conmon of a container (or the clean-up it becomes) is there."""
    try:
        number = int(pid_file.read_text())
        return identity.encode() in files.read_beginning(Path(f"/proc/{number}/cmdline"))
    except (OSError, ValueError):
        return False


def not_open(name: str) -> errors.Conflict:
    """Say that a container was started with its standard input closed."""
    message = f'the standard input of container "{name}" is not open'
    return errors.Conflict(message, reason="StdinClosed", hint="`fairlead exec -it` runs a shell beside it")
