"""Starts NVIDIA's MPS control program in the node's root, by system calls: the agent's image has no program for that.

    python -I -S mpsenter.py BASE ROOT HOW PROGRAM ARGUMENT...

BASE is the daemon's base folder, ROOT the root that PROGRAM runs in. HOW is `ask`: PROGRAM talks to a daemon on this
process's own input and outputs; `start`: it becomes the daemon, with no input and BASE/log/fairlead.log as output;
`apart`: the same, in mounts of its own, where BASE/shm is its /dev/shm. Where ROOT is mounted read-only, as in a
container of ours, BASE is laid over it. The mounts are seen nowhere else, and end with the daemon.

The exit code is PROGRAM's, and 127 where it cannot be run, with the reason on standard error and, once it is open, in
the log. Standard library only; every module is loaded before the root is left.
Source: unshare(2), mount(2), mount_namespaces(7), chroot(2).
"""

import ctypes
import os
import sys

CLONE_NEWNS = 0x00020000  # include/uapi/linux/sched.h
MS_BIND, MS_REC, MS_PRIVATE = 1 << 12, 1 << 14, 1 << 18  # include/uapi/linux/mount.h
NOT_RUN = 127

_libc = ctypes.CDLL(None, use_errno=True)


def _check(code: int, what: str) -> None:
    if code != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _bind(source: str, target: str) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, MS_BIND, None), f"mount {target}")


def mount_apart(base: str, root: str) -> None:
    """Take mounts of our own, with the daemon's memory and its folders in them. Raises: OSError."""
    _check(_libc.unshare(CLONE_NEWNS), "unshare")
    _check(_libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "mount /")
    _bind(f"{base}/shm", f"{root.rstrip('/')}/dev/shm")  # noqa: S108 (a mount point, not a file)
    if root != "/":
        _bind(base, root + base)


def redirect(base: str) -> None:
    """Read nothing, and write into the daemon's log. Raises: OSError."""
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    log = os.open(f"{base}/log/fairlead.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)


def main(arguments: list[str]) -> int:
    """Become the program; returns only where it cannot be run."""
    base, root, how, *argv = arguments
    try:
        if how == "apart":
            mount_apart(base, root)
        if how != "ask":
            redirect(base)
        if root != "/":
            os.chroot(root)
            os.chdir("/")
        os.execvp(argv[0], argv)  # noqa: S606 (no shell is wanted)
    except OSError as error:
        sys.stderr.write(f"{error.filename or argv[0]}: {error.strerror}\n")
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
