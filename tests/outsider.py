"""Starts programs that descend from no process of a test, as a person's own do that Fairlead did not start."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_FORK = """
import os, sys
if pid := os.fork():
    print(pid)
    sys.exit()
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for number in range(3):
    os.dup2(null, number)
os.execvp(sys.argv[1], sys.argv[1:])
"""
_PATIENCE_S = 10.0


class Outsider:
    """One such program."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start it."""
        done = subprocess.run(
            (sys.executable, "-I", "-c", _FORK, *argv), stdout=subprocess.PIPE, check=True, env=env, text=True
        )
        self.pid = int(done.stdout)

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        try:
            text = Path(f"/proc/{self.pid}/stat").read_text(errors="replace")
        except OSError:
            return False
        return text.rpartition(")")[2].split()[0] not in {"Z", "X"}

    def kill(self) -> None:
        """End it, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self.is_alive)


def until(is_so: object, patience_s: float = _PATIENCE_S) -> None:
    """Wait for something to be so."""
    assert callable(is_so)
    deadline = time.monotonic() + patience_s
    while not is_so():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


@contextlib.contextmanager
def running(*argv: str, env: Mapping[str, str] | None = None) -> Iterator[Outsider]:
    """Run one for as long as the block."""
    one = Outsider(argv, env)
    try:
        until(lambda: Path(f"/proc/{one.pid}/cmdline").read_bytes().startswith(argv[0].encode()))
        yield one
    finally:
        one.kill()
