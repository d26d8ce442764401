"""Finds which processes have a device open, of one container or of all, and ends them on demand.

A device rule is asked when a node is opened; what is open stays open, and what is mapped stays mapped, also after the
rule is gone and the node with it. So a device can be taken from a container only when no process in it holds it. Looked
at are the descriptors of every thread, since a thread may have a table of its own, and the mappings of every process
in the container's cgroups, and of those that share its mount namespace. A process lives as long as one of its threads.

The kernel holds files for a process outside its tables too, and does not say which: descriptors in flight in a unix
socket's queue, files registered in an io_uring, what a DMA-BUF belongs to, what a process that ends has yet to close.
That is a doubt, and so is what cannot be read, unless the process is gone. Who asks says whose doubts count. An epoll
holds no file open, and a zombie holds nothing: neither is looked for.
Source: proc_pid_fd(5), proc_pid_fdinfo(5), proc_pid_map_files(5), kcmp(2), pidfd_open(2); linux net/unix/af_unix.c
(unix_show_fdinfo, since Linux 5.6), io_uring/fdinfo.c, kernel/exit.c (do_exit), fs/eventpoll.c (eventpoll_release).

What a process could open is another question: the nodes below its /dev are listed, and whose cgroups are named is found
whatever it has, since a node may be removed and made again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from fairlead.kernel import cgroup, processid
from fairlead.model.devicerule import Kind

_END_S: Final = 5.0
_FORMATS: Final[dict[int, Kind]] = {stat.S_IFCHR: "c", stat.S_IFBLK: "b"}
_FOLDERS: Final = ("dri", "nvidia-caps", "vfio")
"""Folders of /dev that have nodes of GPUs."""
Number = tuple[Kind, int, int]
"""`c` or `b`, major, minor."""
_LOOKS: Final = 3
_AGAIN_S: Final = 0.02
"""A descriptor in flight is received within microseconds, and one that ends is gone soon: doubts are confirmed."""
_NO_FILES: Final = ("socket:[", "pipe:[", "anon_inode:")
"""Beginnings of links in /proc/PID/fd that no device's file has: every path begins with a slash, and theirs do not."""
_RING: Final = "anon_inode:[io_uring]"
_DMA_BUF: Final = "/dmabuf:"
_EXITING: Final = 0x4
"""PF_EXITING of include/linux/sched.h."""
_GONE: Final = (FileNotFoundError, ProcessLookupError)
_KCMP: Final = {"x86_64": 312, "aarch64": 272}
_ROUNDS: Final = 4
_COMPARED: Final = (2, 3)
"""KCMP_FILES and KCMP_FS of include/uapi/linux/kcmp.h."""
_ENDED: Final = ("Z", "X")
_libc: Final = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """One process that has a device open or mapped, or may have it where that is not seen."""

    pid: int
    """On the host."""
    name: str
    """As the process calls itself."""
    is_first: bool
    """The container's own first process: with it the container ends."""
    devices: tuple[Number, ...]
    doubt: str = ""
    """What it has that cannot be told from a device; "": nothing."""


def find_holders(pid: int, numbers: Iterable[Number], *, root: Path = Path("/")) -> tuple[Holder, ...]:
    """Return the container's processes that hold one of the devices, or may hold it, by pid.

    Args: pid: host pid of the container's first process.   root: where /proc is.
    """
    wanted, proc = frozenset(numbers), root / "proc"
    same = _comparison(proc)

    def look() -> tuple[Holder, ...]:
        found: list[Holder] = []
        for member in sorted(_members(proc, pid, root)):
            process = proc / str(member)
            _, files = _look(process, same)
            held = frozenset(files.devices) & wanted
            if held or files.doubt:
                found.append(
                    Holder(
                        pid=member,
                        name=processid.read_name(process),
                        is_first=member == pid,
                        devices=tuple(sorted(held)),
                        doubt=files.doubt,
                    )
                )
        return tuple(found)

    return _settled(look)


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
    granted: tuple[Number, ...] = ()
    """Those within reach that its cgroup's rules let it open too, so that no other process had to send them; looked up
    only where it has a device open, or a doubt."""
    doubt: str = ""
    """What it has that cannot be told from a device; "": nothing."""


def find_openers(
    numbers: Iterable[Number], *, groups: Collection[str] = (), root: Path = Path("/")
) -> tuple[Opener, ...]:
    """Return every process in a container that has one of the devices open or within reach, or a doubt, by pid.

    Left out are processes in the mount namespace of the first process and in ours: the driver's daemons and this
    program. A container never shares those.
    Args: groups: parts of cgroups' paths: their processes are returned whatever they have.
          root: where /proc is; it must show the host's processes.
    """
    wanted, proc = frozenset(numbers), root / "proc"
    same = _comparison(proc)

    def look() -> tuple[Opener, ...]:
        own, nodes = {_mounts(proc / "1"), _mounts(proc / "self")}, dict[str, frozenset[Number]]()
        found: list[Opener] = []
        for process in sorted((one for one in proc.iterdir() if one.name.isdecimal()), key=lambda one: int(one.name)):
            if _mounts(process) in own:  # asked first: most processes are the host's, and their files are many
                continue
            threads, files = _look(process, same)
            spaces = {_mounts(thread.folder): thread.folder for thread in threads}
            if spaces.keys() <= own:  # none: it is a zombie
                continue
            for mounts in spaces.keys() - nodes.keys():
                nodes[mounts] = frozenset(_nodes(spaces[mounts])) & wanted
            cgroups = _cgroups(threads[0].folder)
            held, reachable = files.devices & wanted, frozenset[Number]().union(*(nodes[one] for one in spaces))
            if held or reachable or files.doubt or any(group in path for group in groups for path in cgroups):
                found.append(
                    Opener(
                        pid=int(process.name),
                        name=processid.read_name(process),
                        cgroups=cgroups,
                        devices=tuple(sorted(held)),
                        reachable=tuple(sorted(reachable)),
                        granted=_granted(threads[0].folder, reachable, root) if held or files.doubt else (),
                        doubt=files.doubt,
                    )
                )
        return tuple(found)

    return _settled(look)


def find_users(numbers: Iterable[Number], *, root: Path = Path("/")) -> tuple[Opener, ...]:
    """Return every process but this one that has one of the devices open or mapped, or a doubt, by pid.

    The host's own programs count too: a virtual machine often runs in the mount namespace of the first process.
    Args: root: where /proc is; a process that it does not show is not found.
    """
    wanted, proc = frozenset(numbers), root / "proc"
    same, ours = _comparison(proc), str(os.getpid())

    def look() -> tuple[Opener, ...]:
        found: list[Opener] = []
        for name in sorted((one for one in _names(proc) if one.isdecimal() and one != ours), key=int):
            process = proc / name
            threads, files = _look(process, same)
            if threads and (files.devices & wanted or files.doubt):
                found.append(
                    Opener(
                        pid=int(name),
                        name=processid.read_name(process),
                        cgroups=_cgroups(threads[0].folder),
                        devices=tuple(sorted(files.devices & wanted)),
                        doubt=files.doubt,
                    )
                )
        return tuple(found)

    return _settled(look)


def shows_in_flight() -> bool:
    """Return whether this kernel says that a socket has descriptors in flight, as Linux does since 5.6."""
    one, other = socket.socketpair()
    with one, other:
        return "scm_fds:" in _text(Path(f"/proc/self/fdinfo/{one.fileno()}"))


Found = TypeVar("Found", Holder, Opener)


def _settled(look: Callable[[], tuple[Found, ...]]) -> tuple[Found, ...]:
    """Look again while there are doubts, a few times: most pass by themselves."""
    found = look()
    for _ in range(_LOOKS - 1):
        if not any(one.doubt for one in found):
            break
        time.sleep(_AGAIN_S)
        found = look()
    return found


def _mounts(process: Path) -> str:
    """Return the mount namespace of a process or thread, of its first living thread where the first one has ended."""
    for thread in (process, *(process / "task" / name for name in _names(process / "task"))):
        with contextlib.suppress(OSError):
            return os.readlink(thread / "ns/mnt")  # noqa: PTH115  (a name, not a path)
    return str(process)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208  (names alone)
    except OSError:
        return []


def _cgroups(process: Path) -> tuple[str, ...]:
    """Return the paths in /proc/PID/cgroup: a line is NUMBER:CONTROLLERS:PATH, and a path may hold any colon."""
    lines = _text(process / "cgroup").split("\n")
    return tuple(dict.fromkeys(line.split(":", 2)[2] for line in lines if line.count(":") >= 2))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _granted(process: Path, numbers: Collection[Number], root: Path) -> tuple[Number, ...]:
    """Return the devices that a process may open by its cgroup's rules; none where they cannot be read."""
    if not numbers:
        return ()
    try:
        cgroups = cgroup.of_process(process, root)
    except OSError:
        return ()
    if not cgroups:  # no device cgroup is mounted: no rule forbids anything
        return tuple(sorted(numbers))
    rules = cgroup.read(cgroups).rules
    if rules is None:
        return ()
    return tuple(one for one in sorted(numbers) if set(rules.access(*one)) & {"r", "w"})


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
        namespace = _mounts(proc / str(pid))
        if namespace == _mounts(proc / "self"):
            return members | {pid}
        members |= {int(one.name) for one in proc.iterdir() if one.name.isdecimal() and _mounts(one) == namespace}
    return members


@dataclass(frozen=True, slots=True)
class _Thread:
    """One thread that has not ended."""

    folder: Path
    """/proc/PID, or /proc/PID/task/TID."""
    is_ending: bool
    """Whether its table of descriptors may be gone, while the driver still closes what was in it."""


@dataclass(slots=True)
class _Files:
    """What was found of one process's files."""

    devices: set[Number] = field(default_factory=set)
    doubts: list[str] = field(default_factory=list)
    rings: int = 0
    """Descriptors of an io_uring."""
    is_blind: bool = False
    """Whether we may read no other user's process: then a refusal says nothing of the one that it is about."""

    @property
    def doubt(self) -> str:
        return ", ".join(dict.fromkeys(self.doubts))

    def unread(self, what: str, error: OSError, thread: Path) -> None:
        """Note what could not be read of a thread; nothing where the thread has ended meanwhile."""
        if isinstance(error, _GONE) or (self.is_blind and isinstance(error, PermissionError)):
            return
        if _status(thread)[0] not in _ENDED:
            self.doubts.append(f"{what} cannot be read: {error.strerror}")


Comparison = Callable[[str, str], bool]


def _comparison(proc: Path) -> Comparison:
    """Return what says whether two threads have one table of descriptors and one root; where none can say, none have.

    A thread in another mount namespace has a root of its own. The kernel knows threads by the numbers of our pid
    namespace; a /proc of another one shows others.
    """
    number = _KCMP.get(os.uname().machine)
    ids = next((line.split()[1:] for line in _text(proc / "self/status").splitlines() if line.startswith("NSpid")), [])
    if number is None or ids != [str(os.getpid())]:
        return lambda *_: False

    def same(one: str, other: str) -> bool:
        return not any(_libc.syscall(number, int(one), int(other), what, 0, 0) for what in _COMPARED)

    return same


def _look(process: Path, same: Comparison) -> tuple[list[_Thread], _Files]:
    """Return a process's threads and files; once more where a thread ended while it was read for all of its table."""
    for _ in range(_ROUNDS):
        threads = _threads(process, same)
        files = _files(threads, is_blind=is_blind(process.parent))
        if all(one.is_ending or _is_whole(one.folder) for one in threads):
            return threads, files
    files.doubts.append("has threads that end while it is looked at")
    return threads, files


def is_blind(proc: Path) -> bool:
    """Return whether the host's first process may not be read, as by an agent that has no privileges."""
    try:
        os.readlink(proc / "1/ns/mnt")  # noqa: PTH115  (a name, not a path)
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _is_whole(thread: Path) -> bool:
    state, flags = _status(thread)
    return state not in _ENDED and not flags & _EXITING and thread.exists()


def _threads(process: Path, same: Comparison) -> list[_Thread]:
    """Return the threads of a process that live, of those with the same files one; none: it is a zombie."""
    found: list[_Thread] = []
    for name in sorted(_names(process / "task"), key=int) or [process.name]:
        if any(same(name, one.folder.name) for one in found):
            continue  # asked first: a process of hundreds of threads costs what one of one thread does
        folder = process if name == process.name else process / "task" / name
        state, flags = _status(folder)
        if state not in _ENDED and folder.exists():
            found.append(_Thread(folder, is_ending=bool(flags & _EXITING)))
    return found


def _status(thread: Path) -> tuple[str, int]:
    """Return a thread's state and flags from /proc/PID/stat; " ": it cannot be read."""
    # The name may hold blanks and parentheses; what follows the last one does not.
    fields = _text(thread / "stat").rpartition(")")[2].split()
    return (fields[0], int(fields[6])) if len(fields) > 6 else (" ", 0)


def _files(threads: Sequence[_Thread], *, is_blind: bool) -> _Files:
    """Return every device that a process has open or mapped, and what it has that may be one."""
    found, read = _Files(is_blind=is_blind), [one.folder for one in threads if not one.is_ending]
    if len(read) < len(threads):
        found.doubts.append("is ending and may not have closed its files")
    for thread in read:
        _read_table(thread, found)
    for thread in read[:1]:
        _read_mappings(thread, found)
    return found


def _read_table(thread: Path, found: _Files) -> None:
    tables = f"{thread}/fd"

    def take(name: str, link: str) -> bool:
        if link.startswith("socket:["):
            _read_socket(f"{tables}info/{name}", found)
        elif link == _RING:
            _read_ring(f"{tables}info/{name}", found)
        elif link.startswith(_DMA_BUF):
            found.doubts.append("has a DMA-BUF, which may be of a GPU's memory")
        else:
            return False
        return True

    _read_links(tables, "open files", "descriptor", thread, found, take)


def _read_links(
    folder: str, what: str, each: str, thread: Path, found: _Files, take: Callable[[str, str], bool]
) -> None:
    """Take in what the links of a folder in /proc lead to; what cannot be read is noted as unread.

    Args: what, each: the links in words, all and one of them.   take: given a link's name and where it leads; returns
          whether that is all there is to it, so that no device is looked for there.
    """
    try:
        names = os.listdir(folder)  # noqa: PTH208  (names alone)
    except OSError as error:
        found.unread(f"its {what}", error, thread)
        return
    for name in names:
        try:
            link = _link(f"{folder}/{name}")
            if not take(name, link) and not link.startswith(_NO_FILES):
                found.devices.update(_number(_stat(f"{folder}/{name}")))
        except OSError as error:
            found.unread(f"its {each} {name}", error, thread)


# Thousands of files: a path object costs more than what is asked of it.


def _link(path: str) -> str:
    return os.readlink(path)  # noqa: PTH115


def _stat(path: str) -> os.stat_result:
    return os.stat(path)  # noqa: PTH116


def _read_socket(path: str, found: _Files) -> None:
    """Note descriptors that were sent to a socket and not received; only unix sockets have such a line."""
    if (count := _field(path, "scm_fds")) not in {"", "0"}:
        found.doubts.append(f"has descriptors in flight in a socket ({count})")


def _read_ring(path: str, found: _Files) -> None:
    """Note files that an io_uring has; the kernel shows their paths, which prove nothing: a file may be renamed."""
    found.rings += 1
    count = _field(path, "UserFiles")
    if count != "0":  # "": an older kernel, or the ring was busy
        found.doubts.append(f"has files registered in an io_uring ({count or 'not shown'})")


def _field(path: str, name: str) -> str:
    """Return a field of a descriptor's information, "" where this kernel has none. Raises: OSError."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        text = file.readall().decode(errors="replace")
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith(f"{name}:")), "")


def _read_mappings(thread: Path, found: _Files) -> None:
    """Take in what a process has mapped: below /proc/TID alone, and a first thread that ended has no mappings there."""
    process = thread if thread.parent.name != "task" else thread.parents[2] / thread.name
    rings = 0

    def take(_name: str, link: str) -> bool:
        nonlocal rings
        rings += link == _RING
        if link.startswith(_DMA_BUF):
            found.doubts.append("has a DMA-BUF mapped, which may be of a GPU's memory")
            return True
        return False

    _read_links(f"{process}/map_files", "mappings", "mapping", thread, found, take)
    if rings and not found.rings:
        found.doubts.append("has an io_uring mapped without a descriptor")


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
