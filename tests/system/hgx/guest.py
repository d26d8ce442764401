"""What runs inside the node's machine: carries out commands that come over a virtio port, one at a time.

A command is a JSON line, its answer another. Fairlead and modules that a test packed are imported once and forked for
each call, because importing costs seconds where every instruction is emulated. Whatever a command starts in the
background goes on after it; processes that have ended are reaped.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

PORT = Path("/dev/vport0p1")
LOGS = Path("/run/started")
_ENDED: dict[int, int] = {}
"""Exit codes of background processes by pid."""
_KEPT: list[subprocess.Popen[bytes]] = []
"""Of background processes: `subprocess` would wait for those that it can forget."""


def run(line: str, limit_s: float) -> dict[str, Any]:
    """Run a line of shell."""
    try:
        done = subprocess.run(("/bin/sh", "-c", line), capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired as late:
        return {"code": None, "out": _text(late.stdout), "err": _text(late.stderr)}
    return {"code": done.returncode, "out": _text(done.stdout), "err": _text(done.stderr)}


def start(name: str, line: str) -> int:
    """Start a line of shell in the background, in a session of its own; returns the pid, which is also its group's."""
    LOGS.mkdir(exist_ok=True)
    with (LOGS / name).open("wb") as log:
        argv = ("/bin/sh", "-c", line)
        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    _KEPT.append(process)
    return process.pid


def kill(pid: int, number: int) -> None:
    """Send a signal to a process."""
    os.kill(pid, number)


def wait(pid: int, limit_s: float) -> int | None:
    """Return the exit code of a background process, negative after a signal; None: it still runs."""
    until = time.monotonic() + limit_s
    while True:
        _reap()
        if pid in _ENDED or time.monotonic() > until:
            return _ENDED.get(pid)
        time.sleep(0.02)


def log(name: str) -> str:
    """Return what a background process has written so far."""
    return _text((LOGS / name).read_bytes())


def fairlead(arguments: list[str], env: dict[str, str]) -> dict[str, Any]:
    """Run Fairlead's command line."""
    onboard = importlib.import_module("onboard")
    answer: dict[str, Any] = onboard.fairlead(*arguments, env=env)
    return answer


def fairlead_start(name: str, arguments: list[str], env: dict[str, str]) -> int:
    """Start Fairlead's command line in the background; returns the pid. Its output is that of the log `NAME`."""
    onboard = importlib.import_module("onboard")
    folder = LOGS / f"{name}.d"
    folder.mkdir(parents=True, exist_ok=True)
    for stream in ("out", "err"):
        (folder / stream).touch()  # before the child begins, so that its log can be read at once
        link = LOGS / f"{name}.{stream}"
        link.unlink(missing_ok=True)
        link.symlink_to(folder / stream)
    pid: int = onboard.start(*arguments, folder=folder, env=env)
    return pid


def call(module: str, function: str, *arguments: Any) -> Any:
    """Call a function of a packed module in a fork; returns what it returned."""
    called = getattr(importlib.import_module(module), function)
    return _forked(lambda: called(*arguments))


def preload(names: list[str]) -> None:
    """Import modules now, so that no fork has to."""
    for name in names:
        importlib.import_module(name)


def script(source: str, *arguments: Any) -> Any:
    """Call the function `main` of a program's text in a fork; returns what it returned."""

    def told() -> Any:
        names: dict[str, Any] = {"__name__": "script"}
        exec(compile(source, "script", "exec"), names)  # noqa: S102 - a test's own text
        return names["main"](*arguments)

    return _forked(told)


def _forked(told: Callable[[], Any]) -> Any:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            answer = {"value": told()}
        except BaseException:  # noqa: BLE001 - the edge of the fork: told to the test, whatever it was
            answer = {"problem": traceback.format_exc()}
        with os.fdopen(writer, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    answer = json.loads(text) if text else {"problem": "it ended without an answer"}
    if "problem" in answer:
        raise RuntimeError(answer["problem"])
    return answer["value"]


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            _ENDED[found[0]] = os.waitstatus_to_exitcode(found[1])


COMMANDS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (run, start, kill, wait, log, fairlead, fairlead_start, call, preload, script)
}


def main() -> None:
    """Answer commands until the port closes, which it does with the machine."""
    with PORT.open("r+b", buffering=0) as port:
        port.write(b'{"ready": true}\n')
        buffer = b""
        while True:
            while b"\n" not in buffer:
                buffer += port.read(1 << 16)
            line, _, buffer = buffer.partition(b"\n")
            command = json.loads(line)
            _reap()
            try:
                answer = {"value": COMMANDS[command["do"]](*command["with"])}
            except Exception:  # noqa: BLE001 - the edge of the loop: told to the test, whatever it was
                answer = {"problem": traceback.format_exc()}
            told = json.dumps(answer).encode() + b"\n"
            while told:
                told = told[port.write(told) :]


if __name__ == "__main__":
    sys.path.insert(0, "/tests")
    main()
