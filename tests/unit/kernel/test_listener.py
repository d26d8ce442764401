"""Who listens on a port of the host."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from fairlead.kernel.network import listener


@pytest.mark.parametrize(("family", "address"), [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")])
def test_a_process_that_listens_is_found(family: socket.AddressFamily, address: str) -> None:
    with socket.socket(family) as held:
        held.bind((address, 0))
        held.listen()
        name = Path("/proc/self/comm").read_text().strip()
        assert listener.find_listener(held.getsockname()[1]) == f"process {os.getpid()} ({name})"


def test_a_bound_datagram_socket_is_found_under_its_own_protocol() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        assert f"process {os.getpid()} " in listener.find_listener(port, "UDP")
        assert listener.find_listener(port, "SCTP") == ""


def test_a_port_that_is_free_has_no_listener() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening
        assert listener.find_listener(held.getsockname()[1]) == ""


@pytest.mark.parametrize(
    ("comm", "line", "who"),
    [
        (b"conmon\n", b"/usr/bin/conmon\0-n\0web\0--exit\0", 'podman\'s container "web"'),
        (b"conmon\n", b"/usr/bin/conmon\0-n\0\x1b[2J\0--exit\0", 'podman\'s container "?[2J"'),
        (b"conmon\n", b"conmon\0-n\0" + b"x" * 200_000, "podman's container \"" + "x" * 255 + '"'),
        (b"conmon\n", b"conmon\0", "process 7 (conmon)"),
        (b"\xff\x1b\n", b"", "process 7 (??)"),
    ],
)
def test_who_listens_is_named_by_its_own_words_made_plain(tmp_path: Path, comm: bytes, line: bytes, who: str) -> None:
    (tmp_path / "net").mkdir()
    row = "0: 00000000:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 4711 1"
    (tmp_path / "net/tcp").write_text(f"head\n{row}\n")
    (tmp_path / "7/fd").mkdir(parents=True)
    (tmp_path / "7/fd/5").symlink_to("socket:[4711]")
    (tmp_path / "7/comm").write_bytes(comm)
    (tmp_path / "7/cmdline").write_bytes(line)
    assert listener.find_listener(8080, proc=tmp_path) == who
