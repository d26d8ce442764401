"""Which start of a program listens: real sockets and processes of this machine, and made-up tables of the kernel's."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.silicon import listener

SERVER = """
import socket, sys
made = socket.socket(socket.AF_UNIX if sys.argv[1].startswith("/") else socket.AF_INET)
made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
made.bind(sys.argv[1] if sys.argv[1].startswith("/") else ("127.0.0.1", int(sys.argv[1])))
made.listen()
print(made.getsockname(), flush=True)
while True:
    kept = made.accept()
"""


@contextlib.contextmanager
def serving(where: str) -> Iterator[tuple[str, int]]:
    """Have a process listen on a path, or on a port of the loopback. Yields: host and port of the latter."""
    words = (sys.executable, "-I", "-S", "-c", SERVER, where)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        try:
            yield "127.0.0.1", 0 if where.startswith("/") else int(said.strip("()\n").split(", ")[1])
        finally:
            process.kill()
    Path(where).unlink(missing_ok=True)


@contextlib.contextmanager
def connected(path: str) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(path)
        yield


def test_each_connection_to_one_start_is_of_that_start_and_the_next_start_is_another(tmp_path: Path) -> None:
    path = str(tmp_path / "one\u00e9 socket")
    seen = []
    for _ in range(2):
        with serving(path):
            for _ in range(2):
                with connected(path):
                    seen.append(listener.find_start(path=path))
            assert listener.find_start(path=path) == "", "without a connection nobody is at its other end"
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert len({*seen}) == 2
    assert all(len(one) == 32 for one in seen)


def test_of_tcp_the_listening_socket_and_its_process_tell_a_start() -> None:
    with serving("0") as (host, port):
        first = listener.find_start(host=host, port=port)
        assert first
        assert listener.find_start(host=host, port=port) == first
    with serving(str(port)):
        assert listener.find_start(host=host, port=port) not in {"", first}
    assert listener.find_start(host=host, port=port) == ""
    assert listener.find_start(host="localhost", port=port) == "", "a name may be any address"


def test_a_program_that_listens_anew_in_one_process_has_begun_anew(tmp_path: Path) -> None:
    path, seen = tmp_path / "s", set[str]()
    for _ in range(2):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(path))
            made.listen()
            with connected(str(path)):
                seen.add(listener.find_start(path=str(path)))
        path.unlink()
    assert len(seen) == 2


HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def line(address: str, number: int, state: str = "0A") -> str:
    return f"   0: {address} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     0        0 {number} 1\n"


def tree(root: Path, *, tcp: str = "", tcp6: str = "", owners: dict[int, int]) -> Path:
    """Write a /proc. Args: owners: number of a socket by the pid that has it open."""
    proc = root / "proc"
    (proc / "self/net").mkdir(parents=True)
    (proc / "sys/kernel/random").mkdir(parents=True)
    (proc / "sys/kernel/random/boot_id").write_text("b1\n")
    (proc / "self/net/tcp").write_text(HEADER + tcp)
    (proc / "self/net/tcp6").write_text(HEADER + tcp6)
    for pid, number in owners.items():
        (proc / f"{pid}/fd").mkdir(parents=True)
        (proc / f"{pid}/fd/3").symlink_to(f"socket:[{number}]")
        (proc / f"{pid}/stat").write_text(f"{pid} (nv fabric) manager) S {' '.join(map(str, range(4, 53)))}\n")
    return root


LOOPBACK, ANY, ANY6 = "0100007F:1A0A", "00000000:1A0A", f"{'0' * 32}:1A0A"


@pytest.mark.skipif(sys.byteorder != "little", reason="the tables are written in the order of little-endian machines")
@pytest.mark.parametrize(
    ("tcp", "tcp6", "owners", "is_told"),
    [
        (line(LOOPBACK, 7), "", {99: 7}, True),
        (line(ANY, 7), "", {99: 7}, True),
        ("", line(ANY6, 7), {99: 7}, True),
        (line(LOOPBACK, 7), line(ANY6, 8), {99: 7, 98: 8}, True),
        (line(LOOPBACK, 7), "", {1: 7, 99: 7}, True),
        (line(LOOPBACK, 7), "", {1: 7}, False),  # kept by systemd, whatever begins behind it
        (line(LOOPBACK, 7), "", {}, False),
        (line(LOOPBACK, 7, "01"), "", {99: 7}, False),
        (line(ANY, 7), line(ANY6, 8), {99: 7, 98: 8}, False),
        (line("0200007F:1A0A", 7), "", {99: 7}, False),
        (line("0100007F:1A0B", 7), "", {99: 7}, False),
        ("nonsense\n" + line("zz:1A0A", 7) + line("0100:1A0A", 7), "", {99: 7}, False),
    ],
)
def test_a_start_is_told_only_where_one_socket_and_its_process_are_known(
    tmp_path: Path, tcp: str, tcp6: str, owners: dict[int, int], is_told: bool
) -> None:
    root = tree(tmp_path, tcp=tcp, tcp6=tcp6, owners=owners)
    assert bool(listener.find_start(host="127.0.0.1", port=6666, root=root)) is is_told


@pytest.mark.skipif(sys.byteorder != "little", reason="the tables are written in the order of little-endian machines")
def test_another_boot_and_another_process_on_a_kept_socket_are_other_starts(tmp_path: Path) -> None:
    root = tree(tmp_path, tcp=line(LOOPBACK, 7), owners={1: 7, 99: 7})
    seen = [listener.find_start(host="127.0.0.1", port=6666, root=root)]
    stat = root / "proc/99/stat"
    stat.write_text(stat.read_text().replace(" 22 ", " 23 "))
    seen.append(listener.find_start(host="127.0.0.1", port=6666, root=root))
    (root / "proc/sys/kernel/random/boot_id").write_text("b2\n")
    seen.append(listener.find_start(host="127.0.0.1", port=6666, root=root))
    assert len(set(seen)) == 3
    stat.write_text(f"{os.getpid()} (half")
    assert listener.find_start(host="127.0.0.1", port=6666, root=root) == ""
