"""Who serves a socket, and who connected to one: asked of the kernel over real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.kernel import socketpeer


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, socket.socket]]:
    path = tmp_path / "s"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(path))
        listener.listen()
        yield path, listener


def test_the_server_of_a_socket_is_found_running(served: tuple[Path, socket.socket]) -> None:
    found = socketpeer.find_server(served[0])
    assert found is not None
    assert (found.pid, found.is_stopped) == (os.getpid(), False)
    assert found.state[:1] in {"R", "S"}


@pytest.mark.parametrize("state", ["T (stopped)", "t (tracing stop)"])
def test_a_server_that_is_stopped_is_told_from_one_that_runs(
    served: tuple[Path, socket.socket], tmp_path: Path, state: str
) -> None:
    folder = tmp_path / "proc" / str(os.getpid())
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tfairlead\nState:\t{state}\n")
    found = socketpeer.find_server(served[0], proc=tmp_path / "proc")
    assert found == socketpeer.Server(pid=os.getpid(), state=state)
    assert found.is_stopped


def test_a_server_whose_state_cannot_be_read_does_not_count_as_stopped(
    served: tuple[Path, socket.socket], tmp_path: Path
) -> None:
    found = socketpeer.find_server(served[0], proc=tmp_path / "nothing")
    assert found is not None
    assert (found.state, found.is_stopped) == ("", False)


def test_a_socket_that_nobody_serves_has_no_server(tmp_path: Path) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as bound:
        bound.bind(str(tmp_path / "s"))
        assert socketpeer.find_server(tmp_path / "s") is None
    assert socketpeer.find_server(tmp_path / "absent") is None


def test_the_peer_of_a_connection_is_named_with_its_ids(served: tuple[Path, socket.socket]) -> None:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as client:
        client.connect(str(served[0]))
        connection, _ = served[1].accept()
        with contextlib.closing(connection):
            expected = socketpeer.Peer(pid=os.getpid(), uid=os.geteuid(), gid=os.getegid())
            assert socketpeer.read(connection) == expected


def test_a_connection_over_tcp_has_no_peer_of_this_machine() -> None:
    with contextlib.closing(socket.socket(socket.AF_INET)) as connection:
        assert socketpeer.read(connection) is None
