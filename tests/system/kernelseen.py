"""Reads from the kernel what containers of podman's are there, and which GPUs they can reach.

Shares nothing with the product, so that it can judge it. A container is known by the cgroup that podman makes for it.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

_NODE = re.compile(r"nvidia([0-9]+)\Z")
_CONTAINER = re.compile(r"/libpod-([0-9a-f]{64})")
_ID = re.compile(rb"\b[0-9a-f]{64}\b")
_KEEPERS = ("conmon", "runc", "crun")
_START = 18
"""Index of the start time among what follows a process's state in /proc/PID/stat (proc(5): field 22)."""
_RULE = re.compile(r"c 195:([0-9]+) [rwm]*r")


def pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def words(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def descendants(pid: int) -> list[int]:
    """Return the processes that one has started, and those have started; none of them is in a container."""
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                if not _CONTAINER.search(Path(f"/proc/{child}/cgroup").read_text()):
                    found += [child, *descendants(child)]
    return found


def is_kubelet(pid: int) -> bool:
    return b"kubelet" in words(pid).split(b"\0")


def start_of(pid: int) -> str:
    """Return when a process began, in ticks; "": it is gone, or dead."""
    with contextlib.suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[_START]
    return ""


def is_alive(pid: int) -> bool:
    return bool(start_of(pid))


def contained() -> list[tuple[int, str, str]]:
    """Return pid, start time and container of every process in the cgroup of one."""
    found = []
    for pid in pids():
        with contextlib.suppress(OSError):
            began, inside = start_of(pid), _CONTAINER.search(Path(f"/proc/{pid}/cgroup").read_text())
            if inside and began:
                found.append((pid, began, inside[1]))
    return found


def container_of(pid: int) -> str:
    """Return the id of the container that a process is in or works for; "": it is gone, or of none."""
    with contextlib.suppress(OSError):
        if inside := _CONTAINER.search(Path(f"/proc/{pid}/cgroup").read_text()):
            return inside[1]
    named = _ID.search(words(pid))
    return named[0].decode() if named else ""


def remains() -> dict[tuple[int, str], str]:
    """Return what each process of containers is, by pid and start time, whatever podman knows of it.

    Conmons, OCI runtimes at work (`runc init` is a container that was never let go), and what is in a container's
    cgroup. A zombie holds nothing.
    """
    found = {}
    for pid in pids():
        with contextlib.suppress(OSError):
            state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            program = words(pid).split(b"\0")[0].rpartition(b"/")[2].decode(errors="replace")
            inside = _CONTAINER.search(Path(f"/proc/{pid}/cgroup").read_text())
            what = f"container {inside[1][:12]}" if inside else program if program in _KEEPERS else ""
            if what and state != "Z":
                found[pid, fields[_START]] = f"{what}: process {pid} {words(pid)[:200]!r}"
    return found


def gpus_of(pid: int) -> set[str]:
    """Return the GPUs a process could open: nodes in its /dev, as far as its cgroup's list (v1) lets it."""
    found = set()
    with contextlib.suppress(OSError):
        found = {match[1] for path in Path(f"/proc/{pid}/root/dev").iterdir() if (match := _NODE.match(path.name))}
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, place = line.split(":", 2)
            rules = Path(f"/sys/fs/cgroup/devices{place}/devices.list")
            if "devices" in controllers.split(",") and rules.exists():
                found &= set(_RULE.findall(rules.read_text()))
    return found
