"""Reads who a program is that is on a GPU and that no pod has: a person's own, or a container of another engine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_NAME: Final = re.compile(r"[^\x20-\x7e]")
_LONGEST: Final = 15
"""Bytes of a program's name that the kernel keeps. Source: proc(5), comm."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program of this machine."""

    pid: int
    name: str
    uid: int
    cgroups: tuple[str, ...]

    @property
    def words(self) -> str:
        """Return what to call it."""
        return f"{self.name} (pid {self.pid}, of uid {self.uid})"


def read(root: Path, pid: int) -> Program | None:
    """Return the program of a pid; None: there is none any more."""
    folder = root / "proc" / str(pid)
    try:
        name = (folder / "comm").read_bytes()[:_LONGEST].decode(errors="replace").strip()
        uid = folder.stat().st_uid
        cgroups = tuple((folder / "cgroup").read_text().splitlines())
    except OSError:
        return None
    # A program names itself: what a terminal would obey is not shown.
    return Program(pid=pid, name=_NAME.sub("?", name), uid=uid, cgroups=cgroups)
