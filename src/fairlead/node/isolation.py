"""What the kernel enforces for one container, read back: device rules, device nodes, and what `open()` says.

Given the host pid of a container's process (a created one, still held before its first instruction, will do):

- the device cgroup's rules. On cgroup v1 the kernel prints them (`devices.list`). On v2 they are BPF programs: their
  ids are asked for with BPF_PROG_QUERY; the kernel does not print what a program decides, so that is said, not guessed.
- the character devices under /dev of its mount namespace, with their numbers.
- what `open()` says there, for paths and for bare device numbers, asked by `probe`, a process that joins the
  container's device cgroup and mount namespace.

Nothing is claimed that was not read: whatever could not be is named in `unread`, with the reason. Reading changes
nothing in the container. Opening a node asks its driver, which may take its time on a GPU nobody has open; the probe
has a time limit.

Source: Linux Documentation/admin-guide/cgroup-v1/devices.rst; cgroup-v2.rst, "Device controller"; bpf(2).
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import platform
import re
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors
from fairlead.engine import command
from fairlead.node import probe

_PROBE_S: Final = 6.0
_BPF_SYSCALLS: Final = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}
_BPF_PROG_QUERY: Final = 16  # include/uapi/linux/bpf.h, enum bpf_cmd
_BPF_CGROUP_DEVICE: Final = 6  # enum bpf_attach_type
_BPF_F_QUERY_EFFECTIVE: Final = 1
_PROGRAMS_MAX: Final = 64
_MOUNT_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceNode:
    """A character device in the container's /dev."""

    path: str
    """As the container sees it."""
    major: int
    minor: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What was read of one container."""

    rules: tuple[str, ...]
    """Device cgroup rules in force, in the kernel's words (`c 195:0 rwm`); on v2 one line per BPF program."""
    nodes: tuple[DeviceNode, ...]
    """By path."""
    opens: Mapping[str, str]
    """What `open()` said, by path or by `major:minor`: `OK`, an errno name, or `mknod:` and an errno name."""
    unread: tuple[str, ...]
    """What could not be read, and why."""


@dataclass(frozen=True, slots=True)
class _Cgroup:
    """Where the device controller of a process is, and which version."""

    folder: Path
    version: int


class _Unreadable(Exception):
    """Something that could not be read, as a sentence."""


class Held:
    """A container held open: its namespace and folders can be read after its process has ended."""

    def __init__(self, process: Path, cgroups: tuple[_Cgroup, ...], namespace: int | None, root: int | None) -> None:
        self.cgroups = cgroups
        self._handles = (namespace, root)
        # By this process's own number: the probe, which opens it, is another one.
        self.namespace = Path(f"/proc/{os.getpid()}/fd/{namespace}") if namespace is not None else process / "ns/mnt"
        self.devices = Path(f"/proc/self/fd/{root}/dev") if root is not None else process / "root/dev"

    def close(self) -> None:
        """Let go."""
        for handle in self._handles:
            if handle is not None:
                os.close(handle)


def hold(pid: int, root: Path = Path("/")) -> Held:
    """Take hold of the container of a process: a few system calls, so that one of milliseconds can be caught.

    Args:    root: where /proc is.   What cannot be held is read by the process's number, while it lives.
    Raises:  NotFound (`ProcessGone`): there is no such process.
    """
    process = root / "proc" / str(pid)
    namespace, folder = _open(process / "ns/mnt", os.O_RDONLY), _open(process / "root", os.O_PATH | os.O_DIRECTORY)
    try:
        return Held(process, _cgroups(process, root), namespace, folder)
    except OSError as error:
        for handle in (namespace, folder):
            if handle is not None:
                os.close(handle)
        if not isinstance(error, FileNotFoundError | ProcessLookupError):
            raise
        message = f"process {pid} is gone: nothing of its container can be read"
        raise errors.NotFound(message, reason="ProcessGone", hint="its container has ended") from error


def _open(path: Path, flags: int) -> int | None:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return None


async def read_back(
    pid: int, *, paths: tuple[str, ...], numbers: tuple[tuple[int, int], ...], root: Path = Path("/")
) -> Isolation:
    """Read what the kernel enforces for the container of a process.

    Args:    pid: host pid of the container's process, created or running.   paths: device paths as the container sees
             them.   numbers: (major, minor) of character devices to try beside any path.   root: where /proc is.
    Raises:  NotFound (`ProcessGone`): there is no such process.
    """
    held = await asyncio.to_thread(hold, pid, root)
    try:
        return await read_held(held, paths=paths, numbers=numbers)
    finally:
        held.close()


async def read_held(held: Held, *, paths: tuple[str, ...], numbers: tuple[tuple[int, int], ...]) -> Isolation:
    """Read what the kernel enforces for a container that is held; arguments as `read_back`."""
    async with asyncio.TaskGroup() as group:
        static = group.create_task(asyncio.to_thread(_read_static, held))
        probed = group.create_task(_probe(held, paths, numbers))
    rules, nodes, unread = static.result()
    opens, more = probed.result()
    return Isolation(rules=rules, nodes=nodes, opens=opens, unread=(*unread, *more))


def _read_static(held: Held) -> tuple[tuple[str, ...], tuple[DeviceNode, ...], tuple[str, ...]]:
    rules: list[str] = []
    unread: list[str] = []
    if not held.cgroups:
        unread.append("device rules: this machine has no device cgroup mounted")
    for cgroup in held.cgroups:
        try:
            rules += _rules_v1(cgroup.folder) if cgroup.version == 1 else _rules_v2(cgroup.folder, unread)
        except _Unreadable as error:
            unread.append(f"device rules: {error}")
    try:
        nodes = list_nodes(held.devices)
    except OSError as error:
        nodes = ()
        unread.append(f"device nodes: /dev of the container: {error.strerror}")
    return tuple(rules), nodes, tuple(unread)


def _cgroups(process: Path, root: Path) -> tuple[_Cgroup, ...]:
    """Return where device rules of a process can be: the v1 controller if mounted, else the v2 hierarchy."""
    lines = [line.split(":", 2) for line in (process / "cgroup").read_text().splitlines()]
    mounts = cgroup_mounts(root)
    for _, controllers, path in lines:
        if "devices" in controllers.split(",") and "devices" in mounts:
            return (_Cgroup(_below(mounts["devices"], path), 1),)
    return tuple(
        _Cgroup(_below(mounts["cgroup2"], path), 2)
        for number, _, path in lines
        if number == "0" and "cgroup2" in mounts
    )


def host_process(root: Path = Path("/")) -> Path | None:
    """Return the folder of the host's first process where this process lives in a container and sees it, else None.

    With the host's pids its process 1 is in another mount namespace than ours; without them process 1 is of our own.
    """
    first, own = root / "proc/1", root / "proc/self"
    try:
        is_other = (first / "ns/mnt").readlink() != (own / "ns/mnt").readlink()
    except OSError:
        return None
    return first if is_other else None


def cgroup_mounts(root: Path) -> dict[str, tuple[str, Path]]:
    """Return (root inside the hierarchy, mount point) of the v1 devices hierarchy and of cgroup2, where mounted.

    From inside a container the host's own mounts are used, if they can be seen: the container's show a part only.
    """
    host = host_process(root)
    below = host / "root" if host is not None else Path("/")
    found: dict[str, tuple[str, Path]] = {}
    for line in ((host or root / "proc/self") / "mountinfo").read_text().splitlines():
        # Source: proc_pid_mountinfo(5): id parent major:minor root point options… - type source super-options
        left, _, right = line.partition(" - ")
        inside, point = (_unescape(field) for field in left.split(" ")[3:5])
        kind, _, options = right.split(" ", 2)
        place = (inside, below / point.lstrip("/"))
        if kind == "cgroup" and "devices" in options.split(","):
            found["devices"] = place
        elif kind == "cgroup2":
            found.setdefault("cgroup2", place)
    return found


def _unescape(field: str) -> str:
    return _MOUNT_ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)


def _below(mount: tuple[str, Path], path: str) -> Path:
    inside, point = mount
    return point / path.removeprefix(inside if inside != "/" else "").lstrip("/")


def _rules_v1(folder: Path) -> list[str]:
    try:
        return (folder / "devices.list").read_text().splitlines()
    except OSError as error:
        message = f"{folder / 'devices.list'}: {error.strerror}"
        raise _Unreadable(message) from error


class _ProgQuery(ctypes.Structure):
    """`union bpf_attr`, the struct of BPF_PROG_QUERY."""

    _fields_ = (
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("query_flags", ctypes.c_uint32),
        ("attach_flags", ctypes.c_uint32),
        ("prog_ids", ctypes.c_uint64),
        ("prog_cnt", ctypes.c_uint32),
        ("_pad", ctypes.c_uint32),
    )


def _rules_v2(folder: Path, unread: list[str]) -> list[str]:
    ids = _device_programs(folder)
    if ids:
        unread.append("device rules: what the BPF programs decide (the kernel prints their ids only)")
    return [f"bpf program {number}" for number in ids] or ["no bpf program: every device allowed"]


def _device_programs(folder: Path) -> tuple[int, ...]:
    """Return the ids of the BPF_CGROUP_DEVICE programs in force for a cgroup v2 folder, inherited ones too."""
    syscall = _BPF_SYSCALLS.get(platform.machine())
    if syscall is None:
        message = f"no number of bpf(2) known for {platform.machine()}"
        raise _Unreadable(message)
    ids = (ctypes.c_uint32 * _PROGRAMS_MAX)()
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        message = f"{folder}: {error.strerror}"
        raise _Unreadable(message) from error
    try:
        query = _ProgQuery(
            target_fd=handle,
            attach_type=_BPF_CGROUP_DEVICE,
            query_flags=_BPF_F_QUERY_EFFECTIVE,
            prog_ids=ctypes.addressof(ids),
            prog_cnt=_PROGRAMS_MAX,
        )
        libc = ctypes.CDLL(None, use_errno=True)
        code = libc.syscall(syscall, _BPF_PROG_QUERY, ctypes.byref(query), ctypes.sizeof(query))
        if code != 0:
            message = f"bpf(BPF_PROG_QUERY) on {folder}: {errno.errorcode.get(ctypes.get_errno(), 'unknown')}"
            raise _Unreadable(message)
    finally:
        os.close(handle)
    return tuple(ids[: query.prog_cnt])


def list_nodes(folder: Path) -> tuple[DeviceNode, ...]:
    """Return the character devices below a /dev, its folders included, never through a link."""
    found: list[DeviceNode] = []
    waiting = [(folder, "/dev")]
    while waiting:
        here, name = waiting.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                path, status = f"{name}/{entry.name}", entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append((Path(entry.path), path))
                elif stat.S_ISCHR(status.st_mode):
                    number = status.st_rdev
                    found.append(DeviceNode(path=path, major=os.major(number), minor=os.minor(number)))
    return tuple(sorted(found, key=lambda node: node.path))


async def _probe(
    held: Held, paths: tuple[str, ...], numbers: tuple[tuple[int, int], ...]
) -> tuple[dict[str, str], tuple[str, ...]]:
    keys = [*paths, *(f"{major}:{minor}" for major, minor in numbers)]
    if not keys:
        return {}, ()
    procs = str(held.cgroups[0].folder / "cgroup.procs") if held.cgroups else "-"
    argv = [sys.executable, "-I", "-S", _program(), procs, str(held.namespace), *paths, "--", *keys[len(paths) :]]
    try:
        result = await command.run(argv, env={}, timeout_s=_PROBE_S)
    except errors.Unavailable as error:
        return {}, (f"what open() says: {error.message}",)
    if result.code != 0:
        why = result.last_line or f"the probe ended with {result.code}"
        return {}, (f"what open() says: {why}",)
    return dict(zip(keys, msgspec.json.decode(result.stdout, type=list[str]), strict=True)), ()


def _program() -> str:
    """Return the probe's compiled file if there is one (spares its compilation on every run), else its source."""
    source = Path(str(probe.__file__))
    compiled = Path(util.cache_from_source(str(source)))
    return str(compiled if compiled.exists() and compiled.stat().st_mtime >= source.stat().st_mtime else source)
