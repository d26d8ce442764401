"""Identifies processes beyond their pid, which is used again: by start time and cgroup.

Source: proc(5), /proc/PID/stat field 22 (starttime); clone of a pid after its reaping is another process.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.kernel import readback

_UNSHOWN: Final = re.compile(r"[^\x20-\x7e]")
_LONGEST: Final = 15
"""Bytes of a program's name that the kernel keeps. Source: proc(5), comm."""


def read_name(process: Path) -> str:
    """Return the name that a program gave itself, without what a terminal would obey; "": it is gone.

    Args: process: its folder in /proc.
    """
    try:
        name = (process / "comm").read_bytes()
    except OSError:
        return ""
    return plain(name.removesuffix(b"\n")[:_LONGEST].decode(errors="replace"))


def plain(text: str) -> str:
    """Return a word that a process says of itself, each character that is not printable ASCII as `?`."""
    return _UNSHOWN.sub("?", text)


def made_at(pid: int, root: Path = Path("/")) -> float | None:
    """Return when the kernel made a process, in Unix time to a hundredth. Source: proc_pid_stat(5), field 22."""
    try:
        text = (root / "proc" / str(pid) / "stat").read_text(errors="replace")  # a name may be any bytes
    except OSError:
        return None
    ticks = int(text.rpartition(")")[2].split()[19])
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessID:
    """One process, for as long as the machine runs."""

    pid: int
    started: str
    """Clock ticks since boot, as the kernel writes them."""


def find(pid: int, *, container: str = "", proc: Path = Path("/proc")) -> ProcessID:
    """Return the process that has a pid now.

    Args:    container: id that its cgroup's path must hold, so that it is a process of that container; "": any.
    Raises:  NotFound (`ProcessGone`): nothing has it, or a process of something else.
    """
    try:
        stat = (proc / str(pid) / "stat").read_text(errors="replace")
        groups = (proc / str(pid) / "cgroup").read_text(errors="replace")
    except OSError as error:
        raise readback.gone(pid) from error
    if container and container not in groups:
        raise readback.gone(pid)
    # The name may hold blanks and parentheses; what follows the last one does not.
    return ProcessID(pid, stat.rpartition(")")[2].split()[19])


def assert_same(process: ProcessID, *, proc: Path = Path("/proc")) -> None:
    """Return if the pid still names it. Raises: NotFound (`ProcessGone`): it is another's by now, or unused."""
    if find(process.pid, proc=proc) != process:
        raise readback.gone(process.pid)
