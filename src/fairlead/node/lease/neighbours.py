"""Reads who a program is that is on a GPU and that no pod has: a person's own, or a container of another engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fairlead.kernel import processid


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
        uid = folder.stat().st_uid
        cgroups = tuple((folder / "cgroup").read_text().splitlines())
    except OSError:
        return None
    return Program(pid=pid, name=processid.read_name(folder), uid=uid, cgroups=cgroups)
