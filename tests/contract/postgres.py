"""Starts a PostgreSQL of Debian's in a folder of its own: unprivileged, on a unix socket alone, without fsync."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

_USER = "nobody"


@dataclass(frozen=True)
class Server:
    """A PostgreSQL that runs."""

    address: str
    control: tuple[str | Path, ...]
    options: str
    user: pwd.struct_passwd

    def restart(self) -> None:
        """End it as a crash does, and start it again, which recovers from its log."""
        _run([*self.control, "-m", "immediate", "stop"], self.user)
        _run([*self.control, "-o", self.options, "start"], self.user)


@contextlib.contextmanager
def started() -> Iterator[str]:
    """Give the address of an empty database; skips where PostgreSQL or the right to start it is missing."""
    with running() as server:
        yield server.address


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Give a server of an empty database; skips as `started`."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    if not programs:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    if os.geteuid() != 0:
        pytest.skip("starting PostgreSQL as another user needs root")
    tools, user = programs[-1].parent, pwd.getpwnam(_USER)
    folder = Path(tempfile.mkdtemp(prefix="fairlead-pg-", dir="/tmp"))
    try:
        os.chown(folder, user.pw_uid, user.pw_gid)
        data = folder / "data"
        first: list[str | Path]
        first = [tools / "initdb", "-D", data, "-A", "trust", "-U", "fairlead", "--no-sync", "-E", "UTF8", "--locale=C"]
        _run(first, user)
        options = f"-k {folder} -c listen_addresses= -c fsync=off"
        control: list[str | Path]
        control = [tools / "pg_ctl", "-D", data, "-w", "-t", "30", "-l", folder / "log"]
        _run([*control, "-o", options, "start"], user)
        try:
            yield Server(f"postgresql://fairlead@/postgres?host={folder}", tuple(control), options, user)
        finally:
            _run([*control, "-m", "immediate", "stop"], user)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(words: list[str | Path], user: pwd.struct_passwd) -> None:
    command = [str(word) for word in words]
    done = subprocess.run(
        command, user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/", capture_output=True, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
