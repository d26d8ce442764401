"""Runs a program as the only one of a namespace of pids, and ends with it: a program of its own that does nothing else.

    python -I -S pidnamespace.py PROGRAM ARGUMENT...

The kernel kills every process of such a namespace with its first one, whatever session, process group or parent each
has chosen. The first one is this program's child: it starts PROGRAM, reaps what PROGRAM leaves, and ends with it. Where
no namespace may be made (no CAP_SYS_ADMIN), this process becomes PROGRAM.

The exit code is PROGRAM's, 128 + N where signal N ended it, and 127 where it cannot be run. SIGTERM is left to PROGRAM;
SIGKILL of this process, or the end of its parent, is the end of all. Standard library only.
Source: pid_namespaces(7), unshare(2), prctl(2).
"""

import ctypes
import os
import signal
import sys

CLONE_NEWPID = 0x20000000  # include/uapi/linux/sched.h
PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
NOT_RUN = 127

_libc = ctypes.CDLL(None, use_errno=True)


def _die_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(argv: list[str]) -> None:
    """Replace this process by the program. Exits with `NOT_RUN` where it cannot be run."""
    try:
        os.execvp(argv[0], argv)  # noqa: S606 (no shell is wanted)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        sys.stderr.flush()
        os._exit(NOT_RUN)


def _wait_for(child: int) -> int:
    """Reap every child until this one has ended; returns its exit code, or 128 + its signal."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _be_the_first(argv: list[str]) -> int:
    """Start the program as second process of the namespace; returns what it ended with."""
    _die_with_parent()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _become(argv)
    return _wait_for(child)


def main(argv: list[str]) -> int:
    """Run a program in a namespace of its own; returns its exit code."""
    _die_with_parent()
    if _libc.unshare(CLONE_NEWPID) != 0:
        _become(argv)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    first = os.fork()
    if first == 0:
        os._exit(_be_the_first(argv))
    return _wait_for(first)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
