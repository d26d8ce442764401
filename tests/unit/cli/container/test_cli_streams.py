"""Standard input, output and errors of `run`, `exec` and `logs`, and signals."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import subprocess
import sys
import time

import pytest

from fairlead.cli.container import logs
from fairlead.cli.core.terminal import streams
from fairlead.client.session import follow
from tests.unit.cli.liveservice import Service


def piped(service: Service, *argv: str, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run the program in a process of its own: a terminal and a pipe need real descriptors."""
    env = {**os.environ, **service.env}  # noqa: TID251 the interpreter's own paths
    command = (sys.executable, "-m", "fairlead.cli.main", *argv)
    return subprocess.run(command, env=env, input=stdin, capture_output=True, timeout=60, check=False)


def test_run_feeds_a_pipe_to_the_program_byte_by_byte(service: Service) -> None:
    result = piped(service, "run", "-i", "demo", "cat", stdin=b"one\x00two\nwithout an end")
    assert result.stdout == b"one\x00two\nwithout an end"
    assert result.returncode == 0


@pytest.mark.parametrize("verb", [("run", "demo"), ("exec", "held")])
def test_a_pipe_that_nobody_reads_is_said(service: Service, verb: tuple[str, ...]) -> None:
    assert service.fairlead("run", "-d", "--name", "held", "demo", "sleep", "60").exit_code == 0
    said = b"warning: standard input was not read; with -i it is passed on\n"
    result = piped(service, *verb, "echo", "x", stdin=b"work\n")
    assert (result.returncode, result.stdout, said in result.stderr) == (0, b"x\n", True)
    assert said not in piped(service, *verb, "echo", "x", stdin=b"").stderr
    assert said not in piped(service, verb[0], "-i", verb[1], "cat", stdin=b"work\n").stderr


def test_run_keeps_standard_error_apart_and_exits_with_the_programs_code(service: Service) -> None:
    result = service.fairlead("run", "demo", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert result.stdout == "out\n"
    assert result.stderr == "err\n"
    assert result.exit_code == 7


def test_run_with_a_terminal_carries_both_ways(service: Service) -> None:
    result = piped(service, "run", "-it", "demo", "sh", stdin=b"echo here\nexit 4\n")
    assert b"here" in result.stdout
    assert result.returncode == 4


def test_exec_keeps_standard_error_apart(service: Service) -> None:
    assert service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60").exit_code == 0
    assert service.fairlead("wait", "a", "--state", "started").exit_code == 0
    result = service.fairlead("exec", "a", "sh", "-c", "echo out; echo err >&2")
    assert (result.stdout, result.stderr) == ("out\n", "err\n")


def test_a_program_that_is_not_in_the_image_is_127(service: Service) -> None:
    result = service.fairlead("run", "demo", "nosuchprogram")
    assert result.exit_code == 127


def test_kill_sends_a_signal_by_name(service: Service) -> None:
    script = 'trap "exit 3" TERM; echo ready; sleep 60 & wait'
    assert service.fairlead("run", "-d", "--name", "a", "demo", "sh", "-c", script).exit_code == 0
    assert service.fairlead("wait", "a", "--state", "started").exit_code == 0
    time.sleep(0.2)
    assert service.fairlead("kill", "-s", "TERM", "a").stdout == "a\n"
    assert service.fairlead("wait", "a").exit_code == 3


def test_kill_names_a_signal_that_is_none(service: Service) -> None:
    assert service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60").exit_code == 0
    result = service.fairlead("kill", "-s", "SIGNOPE", "a")
    assert result.exit_code == 2
    assert 'signal "SIGNOPE"' in result.stderr


def test_signals_go_to_the_process_that_run_follows(service: Service) -> None:
    script = 'trap "exit 3" TERM; echo ready; sleep 60 & wait'
    argv = (sys.executable, "-m", "fairlead.cli.main", "run", "--name", "a", "demo", "sh", "-c", script)
    env = {**os.environ, **service.env}  # noqa: TID251 the interpreter's own paths
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        running.send_signal(signal.SIGTERM)
        _, told = running.communicate(timeout=30)
    assert running.returncode == 3, told


def test_logs_begin_at_a_time(service: Service) -> None:
    assert service.fairlead("run", "--name", "a", "demo", "sh", "-c", "echo old").exit_code == 0
    assert service.fairlead("logs", "a", "--since", "1h").stdout == "old\n"
    assert service.fairlead("logs", "a", "--until", "1h").stdout == ""
    assert service.fairlead("logs", "a", "--since", "tomorrow").exit_code == 2


@pytest.mark.parametrize(
    ("text", "ago_s"), [("10m", 600), ("2h30m", 9000), ("1.5s", 1.5), ("500ms", 0.5), ("1d", 86400)]
)
def test_a_span_is_that_long_ago(text: str, ago_s: float) -> None:
    now = dt.datetime.now(dt.UTC).timestamp()
    found = dt.datetime.fromisoformat(logs.Moment().convert(text, None, None)).timestamp()
    assert found == pytest.approx(now - ago_s, abs=5)


def test_a_time_may_have_nanoseconds() -> None:
    found = logs.Moment().convert("2026-01-31T08:00:00.123456789Z", None, None)
    assert found == "2026-01-31T08:00:00.123456Z"


def test_frames_are_read_however_they_are_cut() -> None:
    whole = b"\x01\0\0\0\0\0\0\x03out\x02\0\0\0\0\0\0\x04fail\x01\0\0\0\0\0\0\x00\x01\0\0\0\0\0\0\x01!"
    pieces = [whole[at : at + 1] for at in range(len(whole))]
    found: dict[int, bytes] = {1: b"", 2: b""}
    for stream, data in follow.demultiplexed(pieces):
        found[stream] += data
    assert found == {1: b"out!", 2: b"fail"}


def test_a_notice_is_read_whole() -> None:
    whole = b"\x03\0\0\0\0\0\0\x05again\x01\0\0\0\0\0\0\x01!"
    pieces = [whole[at : at + 1] for at in range(len(whole))]
    assert list(follow.demultiplexed(pieces)) == [(3, b"again"), (1, b"!")]


def test_followed_output_goes_on_after_a_restart_which_is_said_beside_it(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "a", "demo", "sh", "-c", "echo here; sleep 60")
    assert service.fairlead("wait", "a", "--state", "started").exit_code == 0
    command = (sys.executable, "-m", "fairlead.cli.main", "logs", "-f", "a")
    env = {**os.environ, **service.env}  # noqa: TID251 the interpreter's own paths
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == b"here\n"
        assert service.fairlead("restart", "-t", "0", "a").exit_code == 0
        assert following.stdout.readline() == b"here\n"
        assert service.fairlead("rm", "-f", "a").exit_code == 0
        _, said = following.communicate(timeout=30)
    assert said == b"fairlead: a was stopped and is started again\n"
    assert following.returncode == 0


def test_the_detach_keys_are_found_together_and_one_by_one() -> None:
    keys = streams.DetachKeys()
    assert keys.passed(b"ls\n") == b"ls\n"
    assert keys.passed(b"a\x10") == b"a"  # held until the next key
    assert keys.passed(b"b") == b"\x10b"
    assert keys.passed(b"\x10") == b""
    with pytest.raises(streams.Detached):
        keys.passed(b"\x11")
    with pytest.raises(streams.Detached):
        streams.DetachKeys().passed(b"x\x10\x11")
    ended = streams.DetachKeys()
    ended.passed(b"\x10")
    assert ended.passed(b"") == b"\x10"


def test_a_container_left_at_its_terminal_is_joined_again(service: Service) -> None:
    """A terminal of ours, since only there are keys looked at."""
    command = [sys.executable, "-m", "fairlead.cli.main"]
    env = {**os.environ, **service.env}  # noqa: TID251 the interpreter's own paths

    def at_terminal(words: list[str], *turns: tuple[str, bytes]) -> tuple[int, str]:
        ours, theirs = os.openpty()
        with subprocess.Popen(command + words, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as running:
            os.close(theirs)
            said = b""
            for awaited, keys in turns:
                while awaited.encode() not in said:
                    said += os.read(ours, 4096)
                os.write(ours, keys)
            with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
                while piece := os.read(ours, 4096):
                    said += piece
            os.close(ours)
            return running.wait(30), said.decode()

    script = "echo ready; cat"
    code, said = at_terminal(
        ["run", "-it", "--name", "shell", "demo", "sh", "-c", script], ("ready", b"one\n"), ("one", b"\x10\x11")
    )
    assert (code, "`fairlead attach shell` comes back to it" in said) == (0, True)
    assert service.fairlead("ps", "-o", "name").stdout == "shell\n"
    code, said = at_terminal(["attach", "shell"], ("joined shell", b"two\n"), ("\ntwo\n", b"\x10\x11"))
    assert (code, "keeps running" in said) == (0, True)
    assert service.fairlead("rm", "-f", "shell").exit_code == 0
