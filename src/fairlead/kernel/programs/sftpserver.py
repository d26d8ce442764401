"""Serves SFTP on standard input and output from inside a running container: a program of its own.

    python -I sftpserver.py PID CONTAINER UID GID GROUP,… CAPABILITY,… FOLDER

It joins what confines the container's first process (PID, whose cgroup must name CONTAINER): its cgroups, with their
limits and device rules, and its user, mount, pid, network, ipc, uts and cgroup namespaces. Then it becomes the
container's user, with no more of the container's capabilities than files need, and begins in FOLDER. The protocol is
asyncssh's; the names in messages of protocol 3 alone, which every client speaks.

Nothing of the container runs in it, and nothing of it can be used to leave the container:
- Every module is loaded before it goes in, and afterwards none can be: names of users are numbers, since looking them
  up would load the container's own libraries.
- It refuses to go on where it still sees the machine's root.
- No file of the machine is open in it, and it sees no procfs: `/proc/self/exe` and its like would lead to files of the
  machine. It covers each procfs in a private copy of the mount namespace, while it still may.
- It opens regular files and folders alone, never a device, a pipe or a socket.
- It cannot be traced (PR_SET_DUMPABLE), cannot gain rights (PR_SET_NO_NEW_PRIVS), and ends with the container and with
  who started it.

Source: setns(2), pid_namespaces(7), capabilities(7), proc(5), PR_SET_DUMPABLE(2const);
        draft-ietf-secsh-filexfer-02 (SFTP 3).
"""

import asyncio
import concurrent.futures.thread  # noqa: F401 whatever asyncio may want later is loaded now
import contextlib
import ctypes
import errno
import locale  # noqa: F401
import logging
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Iterator
from typing import Any

import asyncssh
from asyncssh import sftp
from asyncssh.constants import FXF_APPEND, FXF_CREAT, FXF_EXCL, FXF_READ, FXF_TRUNC, FXF_WRITE

# include/uapi/linux/sched.h
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
NAMESPACES = {
    "user": CLONE_NEWUSER,
    "mnt": CLONE_NEWNS,
    "pid": CLONE_NEWPID,
    "net": CLONE_NEWNET,
    "ipc": CLONE_NEWIPC,
    "uts": CLONE_NEWUTS,
    "cgroup": CLONE_NEWCGROUP,
}
# include/uapi/linux/prctl.h, include/uapi/linux/capability.h, include/uapi/linux/mount.h, include/uapi/linux/magic.h
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 4, 24, 38
CAPABILITY_VERSION_3 = 0x20080522
FILE_CAPABILITIES = {"CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_DAC_READ_SEARCH": 2, "CAP_FOWNER": 3, "CAP_FSETID": 4}
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x1, 0x2, 0x4, 0x8, 0x4000, 0x40000
PROC_SUPER_MAGIC = 0x9FA0
FAILED = 3

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """It could not go in as it must."""


def _checked(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise Refused(f"{what}: {errno.errorcode.get(number, str(number))}")


# going in


def cgroup_files(pid: int, container: str) -> list[str]:
    """Return the files that move a process into the cgroups of another. Raises: Refused: it is not the container's."""
    with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:  # noqa: PTH123
        lines = file.read().splitlines()
    if not any(container in line for line in lines):
        raise Refused(f"process {pid} is not the container's any more")
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers:
            base = f"/sys/fs/cgroup/{controllers.removeprefix('name=')}"
        else:
            base = "/sys/fs/cgroup/unified" if os.path.isdir("/sys/fs/cgroup/unified") else "/sys/fs/cgroup"  # noqa: PTH112
        found.append(f"{base}{path.rstrip('/')}/cgroup.procs")
    return found


def join_cgroups(files: list[str]) -> None:
    """Move this process. Raises: Refused: the limits and device rules of the container would not hold for it."""
    for name in files:
        try:
            handle = os.open(name, os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # a hierarchy that is not mounted holds nothing
        try:
            os.write(handle, b"0")
        except OSError as error:
            raise Refused(f"{name}: {errno.errorcode.get(error.errno or 0, '?')}") from error
        finally:
            os.close(handle)


def namespaces(pid: int) -> int:
    """Return the flags of the namespaces that another process has and this one has not."""
    flags = 0
    for name, flag in NAMESPACES.items():
        with contextlib.suppress(FileNotFoundError):
            if os.stat(f"/proc/{pid}/ns/{name}").st_ino != os.stat(f"/proc/self/ns/{name}").st_ino:  # noqa: PTH116
                flags |= flag
    if not flags & CLONE_NEWNS or not flags & CLONE_NEWPID:
        raise Refused("the container has no mount namespace, or no pid namespace, of its own")
    return flags


def check_root(machine: os.stat_result) -> None:
    """Refuse to serve the machine's files. Args: machine: its root. Raises: Refused: it is this process's still."""
    if os.path.samestat(machine, os.stat("/")):  # noqa: PTH116
        raise Refused("the container sees the machine's root")


def proc_mounts(mountinfo: str) -> Iterator[bytes]:
    """Yield where a procfs is mounted, from the text of /proc/self/mountinfo."""
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        if tail.split(" ", 1)[0] == "proc":
            path = os.fsencode(head.split(" ")[4])
            yield re.sub(rb"\\([0-7]{3})", lambda found: bytes((int(found[1], 8),)), path)


def hide_proc() -> None:
    """Cover every procfs in a copy of the mount namespace that is this process's alone.

    One below another is covered with it. Raises: Refused: one is still seen.
    """
    _checked("unshare", _libc.unshare(CLONE_NEWNS))
    _checked("mount private", _libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:  # noqa: PTH123
        found = sorted(proc_mounts(file.read()), key=len)
    how = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC
    for path in found:
        # A file of a procfs that is mounted by itself (`/proc/kcore`) went out of sight with its folder.
        if os.path.isdir(path):  # noqa: PTH112
            _checked("mount tmpfs", _libc.mount(b"tmpfs", path, b"tmpfs", how, b"size=4k,mode=555"))
    for path in found:
        if os.path.lexists(path) and _is_proc(path):
            raise Refused("a procfs of the container cannot be covered")


def _is_proc(path: bytes) -> bool:
    about = (ctypes.c_long * 64)()
    return _libc.statfs(path, ctypes.byref(about)) == 0 and about[0] == PROC_SUPER_MAGIC


# becoming the container's user


def become(uid: int, gid: int, groups: list[int], capabilities: list[str]) -> None:
    """Take the container's user, and no more of its capabilities than files need."""
    kept = {FILE_CAPABILITIES[one] for one in capabilities if one in FILE_CAPABILITIES} if uid == 0 else set()
    for number in range(64):
        if number not in kept and _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) != 0:
            break  # the kernel knows no more
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    bits = sum(1 << number for number in kept)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    # struct __user_cap_data_struct, twice: effective, permitted, inheritable
    data = (ctypes.c_uint32 * 6)(bits, bits, 0, 0, 0, 0)
    _checked("capset", _libc.capset(ctypes.byref(header), ctypes.byref(data)))
    _checked("no new privileges", _libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked("not dumpable", _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
    _checked("parent's end", _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def close_imports() -> None:
    """Have no module, and no library of a name service, loaded from the container's files."""
    time.tzset()
    for name in ("pwd", "grp"):
        sys.modules[name] = None  # type: ignore[assignment] # an import of it raises ImportError
    sys.path[:] = []
    sys.path_hooks.clear()
    sys.meta_path.clear()


# serving


class Input(asyncio.StreamReader):
    """Standard input, as asyncssh's protocol reads it."""

    def __init__(self) -> None:
        super().__init__(limit=1 << 17)
        self.logger = asyncssh.logging.logger

    def get_extra_info(self, _name: str, default: str = "") -> str:
        """Return what is known of the client: nothing, so it is taken for one that swaps the words of a symlink."""
        return default or "OpenSSH"


class Output:
    """Standard output: a client that reads nothing stops this process and no other."""

    channel: "Output"

    def __init__(self) -> None:
        self.channel = self
        self._is_closing = False

    def is_closing(self) -> bool:
        """Return whether nothing more is written."""
        return self._is_closing

    def write(self, data: bytes) -> None:
        """Write all of it."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(1, left) :]
            except BrokenPipeError:
                self._is_closing = True
                return

    def close(self) -> None:
        """Write nothing more."""
        self._is_closing = True


class Files(sftp.SFTPServer):
    """Regular files and folders."""

    def __init__(self) -> None:
        """Nothing of a connection: this process has none."""
        self._chroot = None

    def format_user(self, uid: int | None) -> str:
        """Return the number: a name would come from the container's own libraries."""
        return "" if uid is None else str(uid)

    def format_group(self, gid: int | None) -> str:
        """As `format_user`."""
        return "" if gid is None else str(gid)

    def open(self, path: bytes, pflags: int, attrs: Any) -> object:
        """Open a regular file. Raises: PermissionError: it is something else."""
        ways = {
            FXF_READ: os.O_RDONLY,
            FXF_WRITE: os.O_WRONLY,
            FXF_READ | FXF_WRITE: os.O_RDWR,
        }
        flags = ways.get(pflags & (FXF_READ | FXF_WRITE), os.O_RDONLY)
        for asked, flag in (
            (FXF_APPEND, os.O_APPEND),
            (FXF_CREAT, os.O_CREAT),
            (FXF_EXCL, os.O_EXCL),
        ):
            flags |= flag if pflags & asked else 0
        mode = 0o666 if attrs.permissions is None else attrs.permissions & 0o7777
        handle = os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, mode)
        file = os.fdopen(handle, "r+b" if flags & os.O_RDWR else "wb" if flags & os.O_WRONLY else "rb", buffering=0)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            file.close()
            raise PermissionError(errno.EACCES, "neither a regular file nor a folder")
        if pflags & FXF_TRUNC:
            os.ftruncate(handle, 0)  # once it is known to be a file
        return file


async def _serve() -> None:
    loop, reader = asyncio.get_running_loop(), Input()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await sftp.run_sftp_server(Files(), reader, Output(), 3)  # type: ignore[arg-type] # what of both is used is there


def _wait_for(child: int) -> int:
    """Return how a child ended; its end by a signal is that of the container."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def _inside(folder: str, uid: int, gid: int, groups: list[int], capabilities: list[str]) -> int:
    hide_proc()
    become(uid, gid, groups, capabilities)
    os.umask(0o022)
    for place in (folder, "/"):
        with contextlib.suppress(OSError):
            os.chdir(place)
            break
    loop = asyncio.new_event_loop()
    with contextlib.suppress(ConnectionError, EOFError):
        loop.run_until_complete(_serve())
    return 0


def main(arguments: list[str]) -> int:
    """Run the program; returns its exit code."""
    pid, container, uid, gid, groups, capabilities, folder = arguments
    logging.disable(logging.CRITICAL)
    try:
        close_imports()
        target = os.pidfd_open(int(pid))
        files, flags = cgroup_files(int(pid), container), namespaces(int(pid))
        signal.pidfd_send_signal(target, 0)  # it lives, so what was read is its own
        join_cgroups(files)
        root = os.stat("/")  # noqa: PTH116
        _checked("not dumpable", _libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
        _checked("setns", _libc.setns(target, flags))
        check_root(root)
        os.closerange(3, 1 << 16)
        # A process stays in its pid namespace: its children are born in the one that it joined.
        if child := os.fork():
            os.closerange(0, 2)
            return _wait_for(child)
        _checked("parent's end", _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        names = [one for one in capabilities.split(",") if one]
        code = _inside(folder, int(uid), int(gid), [int(one) for one in groups.split(",") if one], names)
    except (Refused, OSError) as error:
        sys.stderr.write(f"sftp: {error}\n")
        return FAILED
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
