"""The program ends while a thread of it still reads or writes a standard stream: with its own code, by no abort.

The interpreter's last flush aborts the process where a thread that it does not wait for keeps a stream's lock. It does
so for buffered streams alone, hence the environment without PYTHONUNBUFFERED.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping

import pytest

from tests.unit.cli.liveservice import Service

FAIRLEAD = (sys.executable, "-m", "fairlead.cli.main")
PIPE_BYTES = 1 << 16
PIECE = b"x" * 4095 + b"\n"
"""As much as a terminal takes at once."""
DEADLINE_S = 20.0


def buffered(env: Mapping[str, str]) -> dict[str, str]:
    own = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}  # noqa: TID251 its paths
    return {**own, **env}


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_full(pipe: int) -> bool:
    """Return whether a pipe takes no more, so that who writes to it waits."""
    return not select.select([], [pipe], [], 0)[1]


def held_bytes(pipe: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))
    return int(count)


@contextlib.contextmanager
def fairlead(service: Service, *words: str, stdin: int, stdout: int) -> Iterator[subprocess.Popen[bytes]]:
    env, argv = buffered(service.env), (*FAIRLEAD, *words)
    with subprocess.Popen(argv, env=env, stdin=stdin, stdout=stdout, stderr=subprocess.PIPE) as running:
        try:
            yield running
        finally:
            running.kill()


def test_a_terminal_is_left_while_output_waits_for_its_reader(service: Service) -> None:
    assert service.fairlead("run", "-dit", "--name", "loud", "demo", "cat").exit_code == 0
    assert service.fairlead("wait", "loud", "--state", "started").exit_code == 0
    ours, theirs = os.openpty()
    shown, output = os.pipe()
    with fairlead(service, "attach", "loud", stdin=theirs, stdout=output) as running:
        assert running.stderr is not None
        assert b"joined loud" in running.stderr.readline()
        os.write(ours, b"typed\n")
        assert b"typed" in os.read(shown, PIPE_BYTES)  # from here on the terminal is raw
        for _ in range(PIPE_BYTES // len(PIECE) + 2):
            os.write(ours, PIECE)
        until(lambda: is_full(output))
        os.write(ours, b"\x10\x11")
        said = running.stderr.read().decode()
        assert (running.wait(DEADLINE_S), "keeps running" in said) == (0, True), said
    for end in (ours, theirs, shown, output):
        os.close(end)
    assert service.fairlead("rm", "-f", "loud").exit_code == 0


def test_a_copy_is_interrupted_while_it_waits_for_standard_input(service: Service) -> None:
    assert service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60").exit_code == 0
    assert service.fairlead("wait", "a", "--state", "started").exit_code == 0
    source, typed = os.pipe()
    with fairlead(service, "cp", "-", "a:/", stdin=source, stdout=subprocess.DEVNULL) as running:
        assert running.stderr is not None
        os.write(typed, b"a tar's begin")
        until(lambda: held_bytes(source) == 0)
        running.send_signal(signal.SIGINT)
        said = running.stderr.read().decode()
        assert (running.wait(DEADLINE_S), said.strip()) == (130, "")
    os.close(source)
    os.close(typed)


@pytest.mark.parametrize("call", ["unbuffered.write(sys.stdout, b'x' * 70000)", "unbuffered.say('x' * 70000)"])
def test_a_thread_that_waits_to_write_does_not_abort_the_end(call: str) -> None:
    program = f"""
import sys, threading
from fairlead.cli.core.terminal import unbuffered
threading.Thread(target=lambda: {call}, daemon=True).start()
sys.stdin.readline()
sys.exit(3)
"""
    shown, output = os.pipe()
    command = (sys.executable, "-c", program)
    with subprocess.Popen(command, env=buffered({}), stdin=subprocess.PIPE, stdout=output, stderr=output) as running:
        try:
            until(lambda: is_full(output))
        finally:
            running.communicate(b"\n", DEADLINE_S)
    os.close(output)
    with os.fdopen(shown, "rb") as kept:
        assert (running.returncode, set(kept.read())) == (3, {ord("x")})
