"""Reads what a container uses from the kernel: its cgroup's counters, version 1 or 2, and its interfaces'.

Source: Linux Documentation/admin-guide/cgroup-v2.rst ("io.stat") and cgroup-v1/{cpuacct,memory,pids,
blkio-controller}.rst; proc(5), net/dev.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from fairlead.engine import access

_NO_LIMIT: Final = 1 << 60
"""Version 1 writes its largest number where there is no limit."""
_LOOPBACK: Final = "lo"
_CONMON: Final = ("libpod-conmon-", "conmon-")
"""Begins the names of cgroups that podman makes for conmon.  Source: podman libpod/oci_conmon_linux.go."""


def read(pid: int, *, container: str = "", root: Path = Path("/")) -> access.Usage:
    """Return what the container of a process has used.

    Args:    container: id that the process's cgroup must name, since a pid is used again; empty: any.
    Raises:  FileNotFoundError: the process is gone, or it is another's by now.
    """
    folders = _folders(pid, root)
    if container and not any(_is_of(one, container) for one in folders.values()):
        raise FileNotFoundError(pid)
    received, sent = _network(root / f"proc/{pid}/net/dev")
    read_bytes, written_bytes = _disk(folders)
    limit = _number(folders, "memory", "memory.max", "memory.limit_in_bytes")
    return access.Usage(
        cpu_ns=_cpu(folders),
        memory_bytes=_memory(folders),
        memory_limit_bytes=None if limit is None or limit >= _NO_LIMIT else limit,
        processes=_number(folders, "pids", "pids.current", "pids.current"),
        received_bytes=received,
        sent_bytes=sent,
        read_bytes=read_bytes,
        written_bytes=written_bytes,
    )


def _is_of(folder: Path, container: str) -> bool:
    """Return whether a cgroup is a container's own; that of its conmon has its id in the name too."""
    return any(container in part and not part.startswith(_CONMON) for part in folder.parts)


def _folders(pid: int, root: Path) -> dict[str, Path]:
    """Return the folder of each controller; the unified hierarchy's is of ""."""
    found: dict[str, Path] = {}
    text = (root / f"proc/{pid}/cgroup").read_text(errors="surrogateescape")
    for line in filter(None, text.split("\n")):  # a container may give cgroups of its own any other name
        _, controllers, path = line.split(":", 2)
        for one in controllers.split(","):
            base = root / "sys/fs/cgroup"
            if one:
                found[one] = base / controllers / path.lstrip("/")
            else:
                unified = base / "unified" if (base / "unified").is_dir() else base
                found[""] = unified / path.lstrip("/")
    return found


def _text(folders: dict[str, Path], controller: str, file: str) -> str:
    folder = folders.get(controller)
    try:
        return "" if folder is None else (folder / file).read_text()
    except OSError:
        return ""


def _number(folders: dict[str, Path], controller: str, second: str, first: str) -> int | None:
    """Return a counter by its file's name in version 2 and in version 1; None: not counted, or "max"."""
    text = (_text(folders, controller, first) or _text(folders, "", second)).strip()
    return int(text) if text.isdecimal() else None


def _field(text: str, name: str) -> int | None:
    found = re.search(rf"^{name} ([0-9]+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _cpu(folders: dict[str, Path]) -> int | None:
    first = _text(folders, "cpuacct", "cpuacct.usage").strip()
    if first.isdecimal():
        return int(first)
    micro = _field(_text(folders, "", "cpu.stat"), "usage_usec")
    return None if micro is None else micro * 1000


def _memory(folders: dict[str, Path]) -> int | None:
    used = _number(folders, "memory", "memory.current", "memory.usage_in_bytes")
    if used is None:
        return None
    idle = _field(_text(folders, "memory", "memory.stat"), "total_inactive_file")
    if idle is None:
        idle = _field(_text(folders, "", "memory.stat"), "inactive_file")
    return max(0, used - (idle or 0))


def _disk(folders: dict[str, Path]) -> tuple[int | None, int | None]:
    """Return the bytes read and written of all block devices; None: they are not counted here."""
    if text := _text(folders, "blkio", "blkio.throttle.io_service_bytes"):
        rows = [line.split() for line in text.splitlines()]  # 8:0 Read 4096
        found = [(row[1], int(row[2])) for row in rows if len(row) == 3 and row[2].isdecimal()]
        read, written = (sum(count for word, count in found if word == what) for what in ("Read", "Write"))
        return read, written
    folder = folders.get("")
    if folder is None or not (folder / "io.stat").is_file():
        return None, None
    text = _text(folders, "", "io.stat")  # empty: nothing was read or written yet
    read, written = (sum(map(int, re.findall(rf"\b{what}=([0-9]+)", text))) for what in ("rbytes", "wbytes"))
    return read, written


def _network(file: Path) -> tuple[int | None, int | None]:
    try:
        lines = file.read_text().splitlines()[2:]
    except OSError:
        return None, None
    rows = [(name.strip(), rest.split()) for name, _, rest in (line.partition(":") for line in lines)]
    counted = [numbers for name, numbers in rows if name != _LOOPBACK and len(numbers) > 8]
    return sum(int(row[0]) for row in counted), sum(int(row[8]) for row in counted)
