"""The service restarted, as an upgrade does, under everyone who follows: each goes on to the end that its own has."""

from __future__ import annotations

import contextlib
import http.client
import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from home import COMMAND, Home, _Connection

pytestmark = [pytest.mark.podman, pytest.mark.slow]

_LINES = 12
_SCRIPT = f"i=1; while [ $i -le {_LINES} ]; do echo line $i; echo wrong $i >&2; i=$((i+1)); sleep 1; done; exit 3"
_ASKS = "echo begun; read one; echo got $one; exit 4"
_PYTHON = """
import sys
from fairlead import Client
with Client(sys.argv[1]) as client:
    made = client.container("long")
    if sys.argv[2] == "wait":
        print(made.wait().exit_code)
    else:
        for line in made.logs(follow=True):
            print(line, flush=True)
"""


def _socket(home: Home) -> str:
    return str(home.folder / "run/api.sock")


def _raw(home: Home) -> http.client.HTTPConnection:
    """Send a request that waits, as curl would."""
    connection = _Connection(Path(_socket(home)))
    connection.request("GET", "/v1/containers/long/wait?timeout=60")
    return connection


def _runs(home: Home, name: str) -> bool:
    found = home.ask("/v1/containers")["items"]
    return any(item["name"] == name and item["state"] == "running" for item in found)


def test_everyone_who_follows_goes_on_after_a_restart(home: Home) -> None:
    home.up()
    run = ("run", "--name", "short", home.image, "--", "sh", "-c", _SCRIPT)
    home.start("long", "-g", "1", command=("sh", "-c", _SCRIPT))
    python = (sys.executable, "-c", _PYTHON, _socket(home))
    lines = (
        (*COMMAND, "logs", "-f", "long"),
        (*COMMAND, "wait", "long"),
        (*COMMAND, *run),
        (*python, "wait"),
        (*python, "follow"),
    )
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(
                subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=home.env)
            )
            for line in lines
        ]
        home.until(lambda: _runs(home, "short"), what="the foreground run has started")
        time.sleep(2)
        raw = stack.enter_context(contextlib.closing(_raw(home)))
        time.sleep(0.3)
        assert home.process is not None
        home.process.send_signal(signal.SIGTERM)
        answer = raw.getresponse()
        said = json.loads(answer.read())
        assert home.process.wait(30) in {0, -signal.SIGTERM}
        home.up()
        ended = [one.communicate(timeout=90) for one in started]
    assert (answer.status, said["reason"], bool(answer.headers["retry-after"])) == (503, "ServiceStopping", True)
    assert [one.returncode for one in started] == [0, 3, 3, 0, 0], ended
    followed, waited, ran, python_waited, python_followed = ended
    wanted = [f"line {number}" for number in range(1, _LINES + 1)]
    for out, _ in (followed, ran):
        assert out.splitlines() == wanted
    for _, err in (followed, ran):
        assert [line for line in err.splitlines() if line.startswith("wrong ")] == [
            f"wrong {number}" for number in range(1, _LINES + 1)
        ]
    assert [line for line in python_followed[0].splitlines() if line.startswith("line ")] == wanted
    assert (waited[0].strip(), python_waited[0].strip()) == ("failed", "3")
    for _, err in ended:
        assert err.count("waiting up to 60 s") == 1, err
    assert "Traceback" not in home.log()


def test_a_terminal_in_a_container_goes_on_after_a_restart(home: Home) -> None:
    home.up()
    run = (*COMMAND, "run", "-it", "--name", "typed", home.image, "--", "sh", "-c", _ASKS)
    line = ("script", "-qec", shlex.join(run), "/dev/null")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(line, text=True, env=home.env, **pipes) as terminal:  # type: ignore[call-overload]
        home.until(lambda: _runs(home, "typed"), what="it has started")
        time.sleep(1)
        assert home.process is not None
        home.process.send_signal(signal.SIGTERM)
        assert home.process.wait(30) in {0, -signal.SIGTERM}
        home.up()
        time.sleep(3)
        out, _ = terminal.communicate("hello\n", timeout=60)
    assert terminal.returncode == 4, out
    assert (out.count("begun"), out.count("got hello"), out.count("waiting up to 60 s")) == (1, 1, 1), out


def test_input_of_a_pipe_that_may_have_been_lost_is_said(home: Home) -> None:
    home.up()
    run = (*COMMAND, "run", "-i", "--name", "piped", home.image, "--", "sh", "-c", _ASKS)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(run, text=True, env=home.env, **pipes) as piped:  # type: ignore[call-overload]
        home.until(lambda: _runs(home, "piped"), what="it has started")
        time.sleep(1)
        assert home.process is not None
        home.process.send_signal(signal.SIGTERM)
        assert home.process.wait(30) in {0, -signal.SIGTERM}
        home.up()
        _, err = piped.communicate(timeout=60)
    assert (piped.returncode, "a part of the input may not have reached piped" in err) == (6, True), err
    assert _runs(home, "piped")
