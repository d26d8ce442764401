"""Finds every process of the machine that has a device open or mapped, fast enough to be asked often.

`openfiles` proves that nobody can use a device any more, and looks at each thread, socket and ring for it; this looks
at what processes show of themselves: the descriptors of their first living thread, and their shared mappings, since a
device is never mapped privately by a driver's library. A hundred processes take some milliseconds.
Source: proc_pid_fd(5), proc_pid_maps(5), proc_pid_map_files(5), proc_pid_stat(5).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead.kernel import openfiles, processid
from fairlead.kernel.openfiles import Number

_FORMATS: Final = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
_ENDED: Final = frozenset({b"Z", b"X"})
_SHARED: Final = re.compile(rb"^\S+ ...s |/dev/", re.MULTILINE)
"""What a line of a shared mapping begins with, or one of a device by its usual path."""
_MOST_PARENTS: Final = 64
_CONTAINERS_DEV: Final = ("", "/dev", "/dri", "/dev/dri", "/vfio", "/dev/vfio")

File = tuple[int, int]
"""A file's device and inode number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUser:
    """One process that has devices open."""

    pid: int
    name: str
    uid: int
    cgroups: tuple[str, ...]
    """Paths of its cgroups; none: it has ended meanwhile."""
    parent: int
    """Pid of the process that started it, or that took it over."""
    started: str
    """Clock ticks from the boot to its start, as the kernel writes them."""
    devices: tuple[Number, ...] = ()
    doubt: str = ""
    """Why it cannot be read what it has open; empty: it can be."""


def find_users(
    numbers: Collection[Number], *, files: Mapping[Number, File] | None = None, root: Path = Path("/")
) -> tuple[DeviceUser, ...]:
    """Return the processes that have one of the devices open or mapped, or cannot be read, by pid.

    Left out is this process. Where this process may not read others' files, those are
    left out too: `openfiles.is_blind` says so.
    Args: files: which very file a device is, for devices that share their numbers with others of this machine (those
          of simulated machines do): a process counts only if it has that one, or one in a container's /dev.
    """
    proc, wanted = root / "proc", frozenset(numbers)
    blind, ours = openfiles.is_blind(proc), os.getpid()
    found: list[DeviceUser] = []
    for pid in sorted(int(name) for name in _names(f"{proc}") if name.isdecimal()):
        if pid == ours:
            continue
        held, doubt = _held(f"{proc}/{pid}", wanted, files or {})
        if blind:
            doubt = ""
        if (held or doubt) and (one := read(pid, root=root, devices=tuple(sorted(held)), doubt=doubt)) is not None:
            found.append(one)
    return tuple(found)


def read(pid: int, *, root: Path = Path("/"), devices: tuple[Number, ...] = (), doubt: str = "") -> DeviceUser | None:
    """Return who a process is; None: there is none any more, or it has ended and is not waited for."""
    folder = f"{root}/proc/{pid}"
    try:
        uid = os.stat(folder).st_uid  # noqa: PTH116
        # The name may hold blanks and parentheses; what follows the last one does not.
        fields = _text(f"{folder}/stat").rpartition(b")")[2].split()
        cgroups = _text(f"{folder}/cgroup").decode(errors="replace").split("\n")
        name = processid.plain(_text(f"{folder}/comm").removesuffix(b"\n").decode(errors="replace"))
    except OSError:
        return None
    if len(fields) < 20 or fields[0] in _ENDED:
        return None
    return DeviceUser(
        pid=pid,
        name=name,
        uid=uid,
        cgroups=tuple(dict.fromkeys(line.split(":", 2)[2] for line in cgroups if line.count(":") >= 2)),
        parent=int(fields[1]),
        started=fields[19].decode(),
        devices=devices,
        doubt=doubt,
    )


def _text(path: str) -> bytes:
    """Return a small file of /proc: a path object and a text layer cost more than the kernel does. Raises: OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, 1 << 16)
    finally:
        os.close(handle)


def _held(process: str, wanted: frozenset[Number], files: Mapping[Number, File]) -> tuple[set[Number], str]:
    """Return which of the devices a process has open or mapped, and why that cannot be read; both empty: none."""
    held: set[Number] = set()
    doubt = ""
    try:
        for name, link, status in _open_files(process):
            found = set(_matching(status, link, wanted, files)) - held
            # By name alone (O_PATH) nothing is open: runc has the nodes so that it binds. No driver answers behind a
            # simulated node, which can be had in no other way.
            held |= {one for one in found if one in files or not _is_name_alone(f"{process}/fdinfo/{name}")}
        for link, status in _mapped(process):
            held.update(_matching(status, link, wanted, files))
    except PermissionError as error:
        doubt = f"its open files cannot be read: {error.strerror}"
    except OSError:  # it has ended
        return set(), ""
    return held, doubt


def _is_name_alone(path: str) -> bool:
    """Return whether a descriptor is one of a name and opens nothing; one that has been closed opens nothing either."""
    try:
        text = Path(path).read_text(errors="replace")
    except FileNotFoundError:
        return True
    flags = next((line.split()[1] for line in text.splitlines() if line.startswith("flags:")), "0")
    return bool(int(flags, 8) & os.O_PATH)


def _open_files(process: str) -> Iterator[tuple[str, str, os.stat_result]]:
    handle = os.open(f"{process}/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(handle):  # noqa: PTH208  (names alone)
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                link = os.readlink(name, dir_fd=handle)
                if link.startswith("/"):  # no socket, pipe or the like
                    yield name, link, os.stat(name, dir_fd=handle)
    finally:
        os.close(handle)


def _mapped(process: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of shared mappings: a line is `BEGIN-END PERMS OFFSET DEVICE INODE PATH`."""
    with open(f"{process}/maps", "rb", buffering=0) as file:  # noqa: PTH123  (of each process of the machine)
        lines = file.read()
    if _SHARED.search(lines):
        for line in lines.splitlines():
            fields = line.split(None, 5)
            if len(fields) == 6 and (fields[1].endswith(b"s") or b"/dev/" in fields[5]):
                path = os.fsdecode(fields[5].rstrip(b"\n"))
                begin, _, end = fields[0].decode().partition("-")
                try:
                    yield path, os.stat(f"{process}/map_files/{begin.lstrip('0') or '0'}-{end.lstrip('0') or '0'}")  # noqa: PTH116
                except OSError:  # unmapped meanwhile, or not ours to follow: then the file is looked up by its path
                    with contextlib.suppress(OSError):
                        yield path, os.stat(f"{process}/root{path}")  # noqa: PTH116


def _matching(
    status: os.stat_result, link: str, wanted: frozenset[Number], files: Mapping[Number, File]
) -> Iterator[Number]:
    kind = _FORMATS.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        return
    number: Number = (kind, os.major(status.st_rdev), os.minor(status.st_rdev))  # type: ignore[assignment]  # c or b
    if number not in wanted:
        return
    very = files.get(number)
    # A path in another mount namespace is shown from the root of its mount: `/nvidia0` in a container's /dev.
    if very is None or very == (status.st_dev, status.st_ino) or link.rpartition("/")[0] in _CONTAINERS_DEV:
        yield number


def descends(one: DeviceUser, ancestor: int, root: Path = Path("/")) -> bool:
    """Return whether another process started this one, itself or through others that still live."""
    parent = one.parent
    for _ in range(_MOST_PARENTS):
        if parent == ancestor or parent <= 1:
            return parent == ancestor
        found = read(parent, root=root)
        if found is None:
            return False
        parent = found.parent
    return False


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  (names alone)
    except OSError:
        return []
