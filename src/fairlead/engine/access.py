"""Declares the port into an engine's containers: signals, input, processes, use, and files in and out.

`engine.port` starts and ends containers; this port is for those who use them. Podman and the fake implement both and
are held to one contract suite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from fairlead.engine import port


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a running container has used, as its cgroup counts it; None: the kernel does not count it here."""

    cpu_ns: int | None
    """Nanoseconds of all CPUs since the start."""
    memory_bytes: int | None
    """Without the page cache that the kernel would drop first."""
    memory_limit_bytes: int | None
    """None: no limit."""
    processes: int | None
    received_bytes: int | None
    """Of all interfaces but the loopback."""
    sent_bytes: int | None
    read_bytes: int | None = None
    """From disks."""
    written_bytes: int | None = None
    is_pods: bool = False
    """Whether it is the use of the whole pod, whose containers run in one sandbox: one of them has at most that."""


class Input(Protocol):
    """The standard input of a container's first process."""

    async def write(self, data: bytes) -> None:
        """Feed it; b"" closes it. Waits while the process does not read."""
        ...

    async def resize(self, rows: int, columns: int) -> None:
        """Set its terminal's size; nothing without a terminal."""
        ...

    async def close(self) -> None:
        """Let go: the process reads the end of its input where it has no terminal. Idempotent."""
        ...


class Access(Protocol):
    """Into containers of this machine."""

    async def open_input(self, name: str) -> Input:
        """Take hold of the input of a running container.

        Raises: NotFound; Conflict (`ContainerNotRunning`, `StdinClosed`: it was not started with an open one).
        """
        ...

    async def signal(self, name: str, number: int) -> None:
        """Send a signal to a container's first process. Raises: NotFound; Conflict (`ContainerNotRunning`)."""
        ...

    async def list_processes(self, name: str) -> tuple[tuple[str, ...], ...]:
        """Return the processes of a running container as a table, its first row the titles. Raises: as `signal`."""
        ...

    async def usage(self, name: str) -> Usage:
        """Return what a running container uses. Raises: as `signal`."""
        ...

    def read_counters(self, state: port.ContainerState) -> Usage | None:
        """Return what a container uses that a listing of the engine described as running; None: it has ended.

        Reads the kernel's files without asking the engine, for many containers again and again; blocks.
        """
        ...

    async def sftp(self, name: str) -> port.ExecSession:
        """Serve the SFTP protocol over a running container's files, as its user, on the session's streams.

        Raises: as `signal`; Unavailable (`SFTPNotServed`): nothing here serves it.
        """
        ...

    async def pack(self, name: str, path: str) -> port.ExecSession:
        """Read a path of a container as a tar: the session's output, errors apart. Links are packed, not followed.

        Raises: NotFound.
        """
        ...

    async def unpack(self, name: str, path: str) -> port.ExecSession:
        """Write a tar, the session's input, below a folder of a container; no link leads out of its root.

        Raises: NotFound.
        """
        ...
