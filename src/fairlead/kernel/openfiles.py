"""Finds which processes have a device open, of one container or of all, and ends them on demand.

A device rule is asked when a node is opened; what is open stays open, and what is mapped stays mapped, also after the
rule is gone and the node with it. So a device can be taken from a container only when no process in it holds it. Looked
at are the descriptors and the mappings of every process in the container's cgroups, and of those that share its mount
namespace; a descriptor that was sent to a process elsewhere is not found (who could send it had it open before).
Source: proc_pid_fd(5), proc_pid_map_files(5), pidfd_open(2).

What a process could open is another question: the nodes below its /dev are listed, and whose cgroups are named is found
whatever it has, since a node may be removed and made again.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.kernel import cgroup

_END_S: Final = 5.0
_FORMATS: Final = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
_FOLDERS: Final = ("dri", "nvidia-caps", "vfio")
"""Folders of /dev that have nodes of GPUs."""
Number = tuple[str, int, int]
"""`c` or `b`, major, minor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One process that has a device open or mapped."""

    pid: int
    """On the host."""
    name: str
    """As the process calls itself."""
    is_first: bool
    """The container's own first process: with it the container ends."""
    devices: tuple[Number, ...]


def find_holders(pid: int, numbers: Iterable[Number], *, root: Path = Path("/")) -> tuple[Holder, ...]:
    """Return the container's processes that hold one of the devices, by pid.

    Args: pid: host pid of the container's first process.   root: where /proc is.
    """
    wanted, proc = frozenset(numbers), root / "proc"
    found: list[Holder] = []
    for member in sorted(_members(proc, pid, root)):
        held = frozenset(_held(proc / str(member))) & wanted
        if held:
            with contextlib.suppress(OSError):
                name = (proc / str(member) / "comm").read_text().strip()
                found.append(Holder(pid=member, name=name, is_first=member == pid, devices=tuple(sorted(held))))
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opener:
    """One process outside the host's own programs that has a device open or mapped, or could open it."""

    pid: int
    name: str
    """As the process calls itself."""
    cgroups: tuple[str, ...]
    """Paths of its cgroups, which name the pod or the container; none: it has ended meanwhile."""
    devices: tuple[Number, ...]
    """Those that it has open or mapped."""
    reachable: tuple[Number, ...] = ()
    """Those with a node below its /dev."""


def find_openers(
    numbers: Iterable[Number], *, groups: Collection[str] = (), root: Path = Path("/")
) -> tuple[Opener, ...]:
    """Return every process in a container that has one of the devices open or within reach, by pid.

    Left out are processes in the mount namespace of the first process and in ours: the driver's daemons and this
    program. A container never shares those.
    Args: groups: parts of cgroups' paths: their processes are returned whatever they have.
          root: where /proc is; it must show the host's processes.
    """
    wanted, proc, found = frozenset(numbers), root / "proc", list[Opener]()
    own, nodes = {_mounts(proc / "1"), _mounts(proc / "self")}, dict[str, frozenset[Number]]()
    for process in sorted((one for one in proc.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name)):
        mounts = _mounts(process)
        if mounts in own:  # asked first: most processes are the host's, and their files are many
            continue
        if mounts not in nodes:
            nodes[mounts] = frozenset(_nodes(process)) & wanted
        held, cgroups = frozenset(_held(process)) & wanted, _cgroups(process)
        if held or nodes[mounts] or any(group in path for group in groups for path in cgroups):
            found.append(
                Opener(
                    pid=int(process.name),
                    name=_text(process / "comm").strip(),
                    cgroups=cgroups,
                    devices=tuple(sorted(held)),
                    reachable=tuple(sorted(nodes[mounts])),
                )
            )
    return tuple(found)


def _mounts(process: Path) -> str:
    try:
        return os.readlink(process / "ns/mnt")  # noqa: PTH115  (a name, not a path)
    except OSError:
        return str(process)


def _cgroups(process: Path) -> tuple[str, ...]:
    """Return the paths in /proc/PID/cgroup: a line is NUMBER:CONTROLLERS:PATH, and a path may hold any colon."""
    lines = _text(process / "cgroup").split("\n")
    return tuple(dict.fromkeys(line.split(":", 2)[2] for line in lines if line.count(":") >= 2))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _nodes(process: Path) -> Iterator[Number]:
    """Yield the devices with a node below a process's /dev; no link is followed, which would lead out of its root."""
    dev = process / "root/dev"
    for folder in (dev, *(dev / name for name in _FOLDERS)):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                with os.scandir(handle) as entries:
                    for entry in entries:
                        with contextlib.suppress(OSError):
                            yield from _number(entry.stat(follow_symlinks=False))
            finally:
                os.close(handle)


def _number(status: os.stat_result) -> Iterator[Number]:
    kind = _FORMATS.get(stat.S_IFMT(status.st_mode))
    if kind is not None:
        yield kind, os.major(status.st_rdev), os.minor(status.st_rdev)


def _members(proc: Path, pid: int, root: Path) -> set[int]:
    members: set[int] = set()
    with contextlib.suppress(OSError):
        members |= cgroup.members(cgroup.of_process(proc / str(pid), root))
        namespace = (proc / str(pid) / "ns/mnt").readlink()
        if namespace == (proc / "self/ns/mnt").readlink():
            return members | {pid}
        for entry in proc.iterdir():
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if (entry / "ns/mnt").readlink() == namespace:
                        members.add(int(entry.name))
    return members


def _held(process: Path) -> Iterator[Number]:
    """Yield every device a process has open or mapped."""
    for folder in (process / "fd", process / "map_files"):
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                with contextlib.suppress(OSError):
                    yield from _number(entry.stat())


def end(holders: Iterable[Holder]) -> tuple[int, ...]:
    """Kill these processes and wait until they are gone; returns the pids of those still there after 5 s.

    Each is signalled through a descriptor of its own process, never by a number that another may have by then.
    """
    waiting: dict[int, int] = {}
    for holder in holders:
        with contextlib.suppress(ProcessLookupError):
            handle = os.pidfd_open(holder.pid)
            waiting[handle] = holder.pid
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    try:
        poll = select.poll()
        for handle in waiting:
            poll.register(handle, select.POLLIN)
        left = dict(waiting)
        while left:
            ready = poll.poll(_END_S * 1000)
            if not ready:
                break
            for handle, _ in ready:
                poll.unregister(handle)
                del left[handle]
        return tuple(left.values())
    finally:
        for handle in waiting:
            os.close(handle)
