"""`fairlead scheduler` and `fairlead controller` as processes beside a cluster, kept alive as by a Deployment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fairlead import errors

LEASE_LOST: Final = errors.TABLE[errors.Conflict].exit
"""Status of one that could not renew its lease: by design it ends, and is started again."""


@dataclass
class Verb:
    """One process on the host, pointed at an API server."""

    name: str
    kubeconfig: Path
    log_path: Path
    arguments: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    exits: list[int] = field(default_factory=list)
    """Statuses of the lives that ended while it was `supervised`."""

    def start(self) -> None:
        command = [sys.executable, "-m", "fairlead.cli.main", self.name, f"--cluster-kubeconfig={self.kubeconfig}"]
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}  # noqa: TID251
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen([*command, *self.arguments], env=kept, stdout=log, stderr=log)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> int:
        """End it and return its status."""
        assert self.process is not None
        self.process.send_signal(sign)
        return self.process.wait(15)

    def kill(self) -> None:
        """Kill it where somebody supervises it."""
        assert self.process is not None
        self.process.kill()

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def until_logged(self, text: str, times: int = 1, *, timeout_s: float = 30) -> None:
        """Wait for a line; the outside of another process has no event to wait for."""
        deadline = time.monotonic() + timeout_s
        while self.log().count(text) < times:
            assert time.monotonic() < deadline, f"{text!r} not within {timeout_s} s:\n{self.log()[-3000:]}"
            time.sleep(0.05)

    @property
    def is_leading(self) -> bool:
        """Whether its last word about the lease is that it has it."""
        return '"event": "leading"' in self.log()


@contextlib.contextmanager
def running(verb: Verb) -> Iterator[Verb]:
    """Have it run for a block; it must end well when asked to."""
    verb.start()
    try:
        yield verb
    finally:
        if verb.process is not None and verb.process.poll() is None:
            status = verb.stop()
            assert status == 0, f"{verb.name} ended with {status}:\n{verb.log()[-3000:]}"


@contextlib.contextmanager
def supervised(verb: Verb) -> Iterator[Verb]:
    """Start it again whenever it ends or is killed, until the end of the block."""
    ending, turn = threading.Event(), threading.Lock()

    def keep() -> None:
        while True:
            assert verb.process is not None
            status = verb.process.wait()
            with turn:
                if ending.is_set():
                    return
                verb.exits.append(status)
                verb.start()

    verb.start()
    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        yield verb
    finally:
        with turn:
            ending.set()
        verb.stop()
        keeper.join(15)
        assert not keeper.is_alive()
