"""Collects and checks the SSH door: the key it is known by, and whether its port can be had."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors
from fairlead.cli.doctor.finding import Finding
from fairlead.settings import Settings

KEY: Final = "ssh_host_ed25519_key"
_OTHERS: Final = 0o077


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was read."""

    listen: str = ""
    """Of the settings; empty: the door is off."""
    has_library: bool = True
    has_accounts: bool = True
    """Whether the API on TLS is on, which keeps the accounts."""
    key: Path | None = None
    """None: there is none yet, or it was not looked at."""
    mode: int = 0
    problem: str = ""
    """Why its address cannot be had; empty: it can, or the service has it."""


def collect(settings: Settings, *, is_served: bool) -> Facts:
    """Look at the door's key and address. Args: is_served: whether the service runs, and so has the address."""
    asked = settings.ssh.listen
    if not asked:
        return Facts()
    file = settings.state.folder / KEY
    mode = None
    with contextlib.suppress(OSError):
        mode = file.stat().st_mode & 0o777
    return Facts(
        listen=asked,
        has_library=importlib.util.find_spec("asyncssh") is not None,
        has_accounts=bool(settings.api.listen),
        key=None if mode is None else file,
        mode=mode or 0,
        problem="" if is_served or os.geteuid() != 0 else _bind_problem(asked),
    )


def _bind_problem(asked: str) -> str:
    from fairlead.serve import sockets  # only where the door is on

    try:
        listener: socket.socket = sockets.listen_at(f"127.0.0.1:{asked}" if asked.isdecimal() else asked)
    except errors.FairleadError as error:
        return error.message
    listener.close()
    return ""


def check(seen: Facts) -> Iterator[Finding]:
    """Yield what is wrong with the door, or that nothing is; none where it is off."""
    if not seen.listen:
        return
    found = list(_wrong(seen))
    yield from found or [Finding(check="ssh", level="ok", what=f"the SSH door listens at {seen.listen}")]


def _wrong(seen: Facts) -> Iterator[Finding]:
    if not seen.has_library:
        what, why = "asyncssh is not installed", "ssh.listen is set, and the service does not start without it"
        fix = "`make install` and the Debian package bring it; a wheel has it with its extra, fairlead[server,ssh]"
        yield Finding(check="ssh", level="fail", what=what, why=why, fix=fix)
    if not seen.has_accounts:
        what, why = "ssh.listen is set, and api.listen is not", "the door is for accounts, which the API on TLS keeps"
        yield Finding(
            check="ssh", level="fail", what=what, why=why, fix="set api.listen, for example to 127.0.0.1:8443"
        )
    if seen.key is not None and seen.mode & _OTHERS:
        what = f"others may read {seen.key}, the SSH door's private key"
        why = f"its mode is {seen.mode:o}: who has read it can pose as this machine; the service does not start with it"
        fix = f"remove {seen.key} and start the service: a new key is made, which people's known_hosts must learn"
        yield Finding(check="ssh", level="fail", what=what, why=why, fix=fix)
    if seen.problem:
        why = "the service does not start where ssh.listen names an address that it cannot have"
        fix = "`ss -ltnp` shows who has the port; choose another in ssh.listen"
        yield Finding(check="ssh", level="fail", what=seen.problem, why=why, fix=fix)
