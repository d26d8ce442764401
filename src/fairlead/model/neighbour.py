"""Defines programs on GPUs: as a driver tells of them, and as neighbours, which Fairlead did not start."""

from __future__ import annotations

import enum

from fairlead.frozen import frozen


@frozen
class GPUProcess:
    """One program on a GPU, as its driver tells."""

    pid: int
    memory_bytes: int | None = None
    """What it has of the GPU's memory; None: the driver does not say."""
    is_graphics: bool = False
    """Whether it draws and does not calculate."""


class Use(enum.StrEnum):
    """What a neighbour does with a GPU."""

    COMPUTE = "compute"
    """It calculates on the GPU, as the driver tells, or could: it has the GPU and the driver's memory manager open."""
    OPEN = "open"
    """It has the GPU's node open, and nothing says what for."""
    GRAPHICS = "graphics"
    """It draws: a display server, or a program on a screen."""
    MONITOR = "monitor"
    """It has the GPU open as programs do that read its state, or that calculate on another GPU of the machine."""
    SERVICE = "service"
    """One of the driver's own daemons."""
    UNREAD = "unread"
    """It cannot be read what it has open, or who it is."""


@frozen
class Neighbour:
    """One program on a GPU that Fairlead did not start."""

    pid: int
    name: str
    """As the program calls itself, in printable ASCII; empty: it cannot be read."""
    uid: int | None = None
    user: str = ""
    """Name of its account, or `uid 1000` where that is not known."""
    unit: str = ""
    """Its systemd unit, `jupyter.service`; empty: none, or it is in a container."""
    container: str = ""
    """Of another engine, in words: `docker container trainer`; empty: none."""
    memory_bytes: int | None = None
    """What it has of this GPU's memory; None: not known."""
    since: float | None = None
    """When it was started, in seconds since 1970; None: it cannot be read."""
    use: Use = Use.OPEN
    started: str = ""
    """Clock ticks from the boot to its start: with the pid it names no other process."""
    keeps: bool = False
    """Whether it keeps the GPU from tenants, by the setting `lease.neighbours`."""
    doubt: str = ""
    """What of it cannot be read; empty: nothing."""
