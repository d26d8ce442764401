"""`fairlead port-forward`: what it listens on, what it says, how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fairlead import errors
from fairlead.cli.access import forward
from tests.unit.cli.liveservice import Service


@pytest.mark.parametrize(
    ("text", "pair"), [("8888", (8888, 8888)), ("9000:80", (9000, 80)), (":80", (0, 80)), ("0:80", (0, 80))]
)
def test_ports_are_written_as_kubectl_has_them(text: str, pair: tuple[int, int]) -> None:
    assert forward.parse(text) == pair


@pytest.mark.parametrize("text", ["", ":", "0", "80:", "-1", "65536", "1:2:3", "http", "٣", "9" * 5000])
def test_a_word_that_names_no_port_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid) as refused:
        forward.parse(text)
    assert (refused.value.reason, bool(refused.value.hint)) == ("PortInvalid", True)


@contextlib.contextmanager
def _stacks_if_it_hangs(process: subprocess.Popen[str]) -> Iterator[None]:
    """Fail with what the process was doing."""
    try:
        yield
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        pytest.fail(f"Ctrl-C did not end it:\n{process.communicate(timeout=10)[1]}")


@contextlib.contextmanager
def _forwarding(service: Service, *words: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    argv = (sys.executable, "-m", "fairlead.cli.main", "port-forward", *words)
    env = {"PYTHONFAULTHANDLER": "1", "PATH": os.defpath, "PYTHONPATH": ":".join(sys.path), **service.env}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            assert said.startswith("Forwarding from 127.0.0.1:")
            yield process, int(said.split()[2].rpartition(":")[2])
        finally:
            process.send_signal(signal.SIGINT)
            with _stacks_if_it_hangs(process):
                process.wait(20)


def test_a_server_inside_is_reached_until_ctrl_c(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "web", "demo", "nc", "-l", "-p", "80")
    with (
        _forwarding(service, "web", ":80", ":81") as (process, port),
        socket.create_connection(("127.0.0.1", port), timeout=10) as one,
    ):
        one.sendall(b"ping")
        assert one.recv(10) == b"ping"
    assert process.returncode == 0


def test_a_container_that_does_not_run_is_named_before_anything_listens(service: Service) -> None:
    refused = service.fairlead("port-forward", "nobody", "80")
    assert (refused.exit_code, refused.stdout) == (2, "")
