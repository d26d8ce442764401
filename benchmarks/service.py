"""Starts the product as a person does, for what is measured from outside: `fairlead up` on simulated silicon."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

COMMAND = (sys.executable, "-m", "fairlead.cli.main")
_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
_START_S = 120.0
"""Where the machine is busy with other things a start takes a minute."""


@dataclass(frozen=True, slots=True)
class Service:
    """One that runs, with its state in a folder of its own."""

    folder: Path
    env: Mapping[str, str]
    pid: int

    @property
    def socket(self) -> Path:
        """Where the machine's administrator asks."""
        return self.folder / "run/api.sock"

    def ask(self, *words: str) -> str:
        """Return what a verb prints. Raises: CalledProcessError."""
        return subprocess.run((*COMMAND, *words), env=self.env, check=True, capture_output=True, text=True).stdout


@contextlib.contextmanager
def running(before: Callable[[Path], tuple[str, ...]] = lambda _folder: (), /, **settings: str) -> Iterator[Service]:
    """Run a service with these variables (`FAIRLEAD_API_LISTEN=…`) until it is no longer needed.

    Args:   before: makes ready what it needs in its folder; returns the words that start it.
    Raises: SystemExit: it does not start, with its log.
    """
    with tempfile.TemporaryDirectory(prefix="flb-", dir="/tmp") as name:
        folder = Path(name)
        env = {
            "PATH": _PATH,
            "HOME": "/root",
            "FAIRLEAD_STATE_FOLDER": str(folder / "state"),
            "FAIRLEAD_STATE_RUN": str(folder / "run"),
            "FAIRLEAD_LOG_LEVEL": "warning",
            **settings,
        }
        with (folder / "up.log").open("wb") as log:
            line = (*before(folder), *COMMAND, "up", "--simulate", "h100x8")
            process = subprocess.Popen(line, env=env, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + _START_S
            while subprocess.run((*COMMAND, "status"), env=env, check=False, capture_output=True).returncode:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit((folder / "up.log").read_text())
            yield Service(folder, env, process.pid)
        finally:
            subprocess.run((*COMMAND, "down", "--grace", "0"), env=env, check=False, capture_output=True)
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a service that was told to end; a busy machine may need more than its own `down` waits for."""
    for end in (None, process.terminate, process.kill):
        if end is not None:
            end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)
            return
