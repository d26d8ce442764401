"""Opens device nodes as a container would and prints each errno: a program of its own.

    python -I -S openprobe.py CGROUP_FILE… -- MOUNT_NS PATH… -- MAJOR:MINOR…
    python -I -S openprobe.py -       the same arguments from standard input: it waits for them

A message on standard input is its number of bytes in decimal, a newline, and words with a NUL between them. Words with
no `--` among them are CGROUP_FILEs that it joins ahead of its orders; where it may not, it says so when it has them.

It joins the container's device cgroups (by CGROUP_FILE: `tasks` of version 1, `cgroup.procs` of version 2) and its
mount namespace (MOUNT_NS, a file of /proc/PID/ns), takes a private copy of that namespace, opens each path there (of a
VFIO node it asks whether it may), mounts a tmpfs that only it sees, makes a node of each number in it and opens that.
Prints a JSON list: one token for each path, then one for each number; `OK`, an errno name, or for a node that may not
even be made `mknod:` and an errno name.

Moving a process between cgroups waits until every processor of the machine has been through the scheduler (8 to 30 ms).
Two ways spare that wait, one for each version: a single thread that moves itself, and a child that is born there.

Nothing of it stays: tmpfs and namespace end with the process. Nothing blocks it: O_NONBLOCK everywhere, and an alarm
ends it. Nothing of the container runs in it: every module is loaded before it goes in. Standard library only, and
little of that, since it stands between a container's create and its start.
"""

import ctypes
import errno
import os
import stat
import sys

# include/uapi/linux/sched.h
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_INTO_CGROUP = 0x00020000, 0x02000000, 0x200000000
CLONE3 = 435  # include/uapi/asm-generic/unistd.h: the same on every architecture
PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
SIGKILL, SIGCHLD = 9, 17  # signal(7), x86 and Arm; the module `signal` would cost its imports
HOST_CGROUPS = "/proc/1/ns/cgroup"
MS_REC, MS_PRIVATE, MS_NOSUID, MS_NOEXEC = 0x4000, 0x40000, 0x2, 0x8  # include/uapi/linux/mount.h
ALARM_S = 5
STAGE = b"/dev"  # every OCI runtime makes it
VFIO = "/dev/vfio/"
READ_AND_WRITE = 0x6  # access(2): R_OK, W_OK

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        sys.stderr.write(f"{what}: {errno.errorcode.get(number, str(number))}\n")
        sys.exit(3)


def _name(error: OSError) -> str:
    return _errno_name(error.errno or 0)


def _errno_name(number: int) -> str:
    return errno.errorcode.get(number, str(number))


def open_outcome(path: str) -> str:
    """Return what opening a path for reading and writing says; for reading alone, where its mode allows no writing.

    NVIDIA's capability nodes (`nvidia-caps/nvidia-cap*`, 0444) are opened so: they are tokens, and hold nothing. A VFIO
    group has one opener, and its container may be about to be it: of those nodes access(2) is asked, which goes by the
    device rules and opens nothing.  Source: linux fs/namei.c, inode_permission; drivers/vfio/group.c.
    """
    if path.startswith(VFIO):
        refused = _libc.access(path.encode(errors="surrogateescape"), READ_AND_WRITE)
        return _errno_name(ctypes.get_errno()) if refused else "OK"
    try:
        how = os.O_RDWR if os.stat(path).st_mode & 0o222 else os.O_RDONLY  # noqa: PTH116 (pathlib is slow to load)
        os.close(os.open(path, how | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError as error:
        return _name(error)
    return "OK"


def number_outcome(text: str) -> str:
    """Return what opening a fresh character node of a number, `MAJOR:MINOR`, says."""
    major, minor = text.split(":")
    path = f"{STAGE.decode()}/{major}-{minor}"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(int(major), int(minor)))
    except OSError as error:
        return f"mknod:{_name(error)}"
    return open_outcome(path)


def _leave_own_cgroups() -> None:
    """Step out of a container's own view of the cgroups: from within it no other cgroup may be joined (nsdelegate)."""
    try:
        view = os.open(HOST_CGROUPS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return  # the host's /proc is not visible: joining fails with its own error
    _libc.setns(view, CLONE_NEWCGROUP)
    os.close(view)


def _continue_in_child(folder: str) -> bool:
    """Go on as a child that is born in a cgroup of version 2; False: it cannot be born there (before Linux 5.7).

    The parent comes back from here only if there is no child: it waits, and ends as the child does.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    # struct clone_args: flags, 3 addresses, the signal of its end, 5 that are not needed, the cgroup
    wanted = (ctypes.c_uint64 * 11)(CLONE_INTO_CGROUP, 0, 0, 0, SIGCHLD, 0, 0, 0, 0, 0, handle)
    child: int = _libc.syscall(CLONE3, ctypes.byref(wanted), ctypes.sizeof(wanted))
    if child > 0:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code < 0:
            os.kill(os.getpid(), -code)
        os._exit(code)
    os.close(handle)
    if child == 0:
        _libc.prctl(PR_SET_PDEATHSIG, SIGKILL)
        _libc.alarm(ALARM_S)  # a child inherits none
    return child == 0


_entered: set[str] = set()


def _enter(cgroup_file: str) -> None:
    folder, name = os.path.split(cgroup_file)
    if name == "cgroup.procs" and _continue_in_child(folder):
        return
    joined = os.open(cgroup_file, os.O_WRONLY | os.O_CLOEXEC)
    os.write(joined, b"0")  # the writer itself; the kernel takes no lock of all threads for this word in `tasks`
    os.close(joined)


def _enter_all(cgroup_files: list[str]) -> None:
    missing = [path for path in cgroup_files if path not in _entered]
    if missing:
        _leave_own_cgroups()
    for path in missing:
        _enter(path)
        _entered.add(path)


def _orders() -> list[str]:
    """Enter the cgroups that come on standard input ahead, and return the orders; none: the input ended first."""
    while size := sys.stdin.buffer.readline():
        words = sys.stdin.buffer.read(int(size)).decode(errors="surrogateescape").split("\0")
        if "--" in words:
            return words
        try:
            _enter_all(words)
        except OSError:
            continue  # the orders name it again, and its error is said then
        _libc.alarm(0)  # set where a child goes on; the time limit starts with the orders
    return []


def _join(cgroup_files: list[str], mount_namespace: str) -> None:
    # Opened before a cgroup is joined: nothing of the host is needed after.
    namespace = os.open(mount_namespace, os.O_RDONLY | os.O_CLOEXEC)
    _enter_all(cgroup_files)
    _checked("setns", _libc.setns(namespace, CLONE_NEWNS))
    _checked("unshare", _libc.unshare(CLONE_NEWNS))
    _checked("mount private", _libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None))
    os.chdir("/")


def main(arguments: list[str]) -> int:
    """Run the program; returns its exit code."""
    if arguments == ["-"]:
        arguments = _orders()
        if not arguments:
            return 0
    _libc.alarm(ALARM_S)
    first = arguments.index("--")
    cgroup_files, mount_namespace, wanted = arguments[:first], arguments[first + 1], arguments[first + 2 :]
    middle = wanted.index("--")
    paths, numbers = wanted[:middle], wanted[middle + 1 :]
    try:
        _join(cgroup_files, mount_namespace)
    except OSError as error:
        sys.stderr.write(f"{error.filename or 'cgroup'}: {_name(error)}\n")
        return 3
    outcomes = [open_outcome(path) for path in paths]
    if numbers:
        _checked("mount tmpfs", _libc.mount(b"tmpfs", STAGE, b"tmpfs", MS_NOSUID | MS_NOEXEC, b"size=64k,mode=700"))
        outcomes += [number_outcome(number) for number in numbers]
    sys.stdout.write("[" + ",".join(f'"{outcome}"' for outcome in outcomes) + "]\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
