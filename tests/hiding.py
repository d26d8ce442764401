"""A process that keeps a device open where a look at its descriptors does not find it; also that program itself.

`python tests/hiding.py WAY NODE` prints `up` once the device is where the way hides it, and ends with its input.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CLONE_FILES, CLONE_NEWNS = 0x400, 0x20000
EXIT, UNSHARE = {"aarch64": (93, 97)}.get(os.uname().machine, (60, 272))
PIDFD_GETFD, IO_URING_SETUP, IO_URING_REGISTER = 438, 425, 427
REGISTER_FILES = 2
MAP_POPULATE = 0x8000
SQ_RING = 0
kept: list[Any] = []
"""What must not be closed by Python."""


def call(*args: Any) -> int:
    """Make a system call, without Python's lock. Raises: OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    found: int = libc.syscall(*args)
    if found < 0:
        raise OSError(ctypes.get_errno(), f"system call {args[0]}")
    return found


def opened(node: str) -> int:
    """Return a descriptor of the device, closed by nothing but its end."""
    return os.open(node, os.O_RDWR | os.O_CLOEXEC)


def in_thread(work: Callable[[], object]) -> None:
    """Do it in a thread that stays."""
    ready = threading.Event()

    def run() -> None:
        work()
        ready.set()
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=run, daemon=True).start()
    ready.wait()


def thread_of_its_own(node: str) -> None:
    """A thread's own table of descriptors has it, the process's does not."""

    def work() -> None:
        call(UNSHARE, CLONE_FILES)
        opened(node)

    in_thread(work)


def thread_in_other_mounts(node: str) -> None:
    """Not open: a thread has a mount namespace of its own with the device in its /dev."""

    def work() -> None:
        call(UNSHARE, CLONE_NEWNS)
        subprocess.run(("mount", "--bind", str(Path(node).parent), "/dev"), check=True)

    in_thread(work)


def thread_and_a_node(node: str) -> None:
    """A plain descriptor, and a node in its /dev."""
    plain(node)
    thread_in_other_mounts(node)


def in_flight_among_threads(node: str) -> None:
    """Of a process with many threads."""
    in_flight(node)
    for _ in range(20):
        in_thread(lambda: None)


def leader_ended(node: str) -> None:
    """The first thread ended; another has the descriptor."""
    opened(node)
    end_leader()


def leader_ended_mapped(node: str) -> None:
    """The first thread ended; the others have it mapped, and no descriptor."""
    mapped(node)
    end_leader()


def end_leader() -> None:
    """End this thread alone."""
    ready = threading.Event()

    def run() -> None:
        ready.set()
        while Path("/proc/self/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.001)
        print("up", flush=True)  # noqa: T201
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=run, daemon=True).start()
    ready.wait()
    call(EXIT, 0)


def plain(node: str) -> None:
    """A plain descriptor."""
    opened(node)


def mapped(node: str) -> None:
    """A mapping without a descriptor."""
    handle = opened(node)
    kept.append(mmap.mmap(handle, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE))
    os.close(handle)


def in_flight(node: str) -> None:
    """It was sent to a socket, and nobody has received it."""
    one, other = socket.socketpair()
    handle = opened(node)
    socket.send_fds(one, [b"x"], [handle])
    os.close(handle)
    kept.append(other)


def in_flight_to_a_listener(node: str) -> None:
    """It was sent over a connection that nobody has accepted."""
    listener, sender = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    listener.bind("")
    listener.listen()
    sender.connect(listener.getsockname())
    handle = opened(node)
    socket.send_fds(sender, [b"x"], [handle])
    os.close(handle)
    sender.close()
    kept.append(listener)


def in_flight_twice(node: str) -> None:
    """The socket in whose queue it is, is itself in the queue of another."""
    in_flight(node)
    inner = kept.pop()
    one, other = socket.socketpair()
    socket.send_fds(one, [b"x"], [inner.fileno()])
    inner.close()
    kept.append(other)


def ring(node: str) -> None:
    """It is registered in an io_uring and closed."""
    register(node)


def register(node: str) -> int:
    """Return the descriptor of a ring that has it."""
    handle, made = opened(node), call(IO_URING_SETUP, 8, ctypes.create_string_buffer(120))
    call(IO_URING_REGISTER, made, REGISTER_FILES, (ctypes.c_int * 1)(handle), 1)
    os.close(handle)
    return made


def ring_mapped(node: str) -> None:
    """The ring that has it is mapped, and its descriptor closed."""
    made = register(node)
    kept.append(mmap.mmap(made, mmap.PAGESIZE, flags=mmap.MAP_SHARED | MAP_POPULATE, offset=SQ_RING))
    os.close(made)


def fetched(node: str) -> None:
    """It was fetched out of a child that has ended since."""
    there, mine = os.pipe()
    child = os.fork()
    if not child:
        os.write(mine, str(opened(node)).encode())
        threading.Event().wait()
    number = int(os.read(there, 16))
    call(PIDFD_GETFD, os.pidfd_open(child), number, 0)
    os.kill(child, 9)
    os.waitpid(child, 0)


def closed_in_an_epoll(node: str) -> None:
    """Not open: an epoll that knew the file forgets it when it is closed."""
    one, other = socket.socketpair()
    poll, handle = select.epoll(), opened(node)
    poll.register(one.fileno())
    with contextlib.suppress(PermissionError):  # most devices cannot be polled
        poll.register(handle)
    os.close(handle)
    kept.extend((poll, one, other))


def received(node: str) -> None:
    """Not open: it was sent, received and closed."""
    in_flight(node)
    _, handles, _, _ = socket.recv_fds(kept[-1], 1, 1)
    os.close(handles[0])


def taken_out_of_a_ring(node: str) -> None:
    """Not open: a ring had it and has it no more."""
    call(IO_URING_REGISTER, register(node), REGISTER_FILES + 1, None, 0)


HIDDEN = (
    thread_of_its_own,
    leader_ended,
    leader_ended_mapped,
    plain,
    mapped,
    fetched,
    in_flight,
    in_flight_to_a_listener,
    in_flight_twice,
    ring,
    ring_mapped,
)
"""Ways to keep a device open."""
DOUBTS = ("in_flight", "in_flight_to_a_listener", "in_flight_twice", "ring", "ring_mapped")
"""Those of which the kernel does not say which file it is."""
CLOSED = (closed_in_an_epoll, received, taken_out_of_a_ring)
"""What looks alike and keeps nothing open."""


@contextlib.contextmanager
def hidden(way: str, node: Path, *apart: str) -> Iterator[int]:
    """Run the program in a mount namespace and with a /dev of its own; gives its host pid.

    Args: apart: other options of unshare(1).
    """
    # A /dev without the device, as a container's that was not granted it: what could be opened is another question.
    inside = 'mount -t tmpfs dev /dev && exec "$@"'
    argv = ("unshare", "-m", *apart, "sh", "-c", inside, "sh", sys.executable, str(Path(__file__)), way, str(node))
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n", f"{way} did not come up"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield int(children[0]) if "--fork" in apart else process.pid
    finally:
        process.communicate()


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2])
    print("up", flush=True)  # noqa: T201
    sys.stdin.buffer.read()
