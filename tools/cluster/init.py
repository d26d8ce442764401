"""Process 1 of a cluster's machine: makes its namespaces and mounts, then reaps until it is killed.

Run as `python -I -S init.py`, with a plan as JSON on standard input. It joins the machine's cgroups, leaves the host's
mount, network, pid and host name namespaces, and forks: the child is process 1 of the new pid namespace. That is what
makes teardown certain: when it is killed, the kernel kills every process of the machine, and the last one takes all
mounts and network devices along. Prints `pid N` (as the host counts) and `ready`, in either order. Standard library
only: it starts before anything else and stays as long as the machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
# <linux/sched.h>, <sys/mount.h>
_NEWNS, _NEWUTS, _NEWPID, _NEWNET = 0x00020000, 0x04000000, 0x20000000, 0x40000000
_BIND, _REC, _PRIVATE, _SHARED = 4096, 16384, 1 << 18, 1 << 20


def main() -> None:
    """Make the machine, in a process that goes on as its process 1."""
    plan = json.load(sys.stdin)
    os.setsid()
    for path in plan["cgroups"]:
        Path(path).write_text("0")
    _checked(_LIBC.unshare(_NEWNS | _NEWUTS | _NEWPID | _NEWNET), "unshare")
    child = os.fork()
    if child:
        print(f"pid {child}", flush=True)
        return
    _make_mounts(plan)
    socket.sethostname(plan["hostname"])
    print("ready", flush=True)
    _detach()
    _reap()


def _make_mounts(plan: dict[str, Any]) -> None:
    """Cover what a node writes to with folders of the machine's own; nothing propagates to the host."""
    _mount(None, "/", None, _REC | _PRIVATE)
    overlay = plan["etc"]
    layers = f"lowerdir=/etc,upperdir={overlay['upper']},workdir={overlay['work']}"
    _mount("overlay", "/etc", "overlay", 0, layers)
    for source, target in plan["binds"]:
        _mount(source, target, None, _BIND | _REC)
    _mount("proc", "/proc", "proc", 0)
    for source, target in plan["sysctls"]:
        if Path(target).exists():
            _mount(source, target, None, _BIND)
    # a container runtime hands mounts on between containers: within the machine everything is shared
    _mount(None, "/", None, _REC | _SHARED)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = [None if text is None else text.encode() for text in (source, target, kind)]
    result = _LIBC.mount(*arguments, ctypes.c_ulong(flags), None if data is None else data.encode())
    _checked(result, f"mount {source} on {target}")


def _checked(result: int, what: str) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _detach() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.chdir("/")


def _reap() -> None:
    """Collect ended children for ever; process 1 ignores signals it has no handler for, SIGKILL from outside apart."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigwait([signal.SIGCHLD])


if __name__ == "__main__":
    main()
