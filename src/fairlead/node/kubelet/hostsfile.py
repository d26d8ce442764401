"""Finds the file that a container has as /etc/hosts, on the host, and changes our lines in it.

The engine keeps one such file for each network namespace and binds it into the containers; its place is read from the
process's mounts, never through the container's own paths, which may be links.
Source: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from fairlead.plan.workload import endpoints

_PLACE: Final = "/etc/hosts"
_ENGINES: Final = re.compile(r".*/[0-9a-f]{64}/userdata/hosts")
"""What podman calls it: a volume that a pod mounts there is its own affair."""
_LARGEST: Final = 1 << 20


def find(pid: int, root: Path = Path("/")) -> Path | None:
    """Return the file on the host; None: the process is gone, or has another file there."""
    with contextlib.suppress(OSError):
        mounted = _mounts(root / "proc" / str(pid) / "mountinfo")
        device, inner = next(((one[0], one[1]) for one in mounted if one[2] == _PLACE), ("", ""))
        if not device:
            return None
        for number, below, place in _mounts(root / "proc/self/mountinfo"):
            if number == device and inner.startswith(below.rstrip("/") + "/"):
                found = place.rstrip("/") + inner.removeprefix(below.rstrip("/"))
                return Path(found) if _ENGINES.fullmatch(found) else None
    return None


def _mounts(path: Path) -> list[tuple[str, str, str]]:
    """Return device, root within its file system and place of each mount."""
    fields = (line.split() for line in path.read_text().splitlines())
    return [(one[2], one[3], one[4]) for one in fields]


def write(path: Path, lines: Sequence[str]) -> bool:
    """Bring our lines in a file to what they should be; return whether something changed. Raises: OSError."""
    found = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        text = os.pread(found, _LARGEST, 0).decode(errors="surrogateescape")
        wanted = endpoints.with_lines(text, lines)
        if wanted == text:
            return False
        data = wanted.encode(errors="surrogateescape")
        os.pwrite(found, data, 0)  # in place: containers have this very file
        os.ftruncate(found, len(data))
        return True
    finally:
        os.close(found)
