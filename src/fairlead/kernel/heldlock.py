"""Locks a file for one process on a machine; the file's text says which process that is.

The kernel releases the lock with the process, however that ends; the text stays, so only a lock that is refused says
who holds it now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from fairlead import errors

CDI: Final = ".fairlead.lock"
"""Name of the lock of a folder of CDI specs."""
_LINES: Final = 4
_UNKNOWN: Final = "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a lock, as the file says. What is not a service has no state folder and no socket."""

    pid: int
    state: str = _UNKNOWN
    socket: str = _UNKNOWN
    since: str = _UNKNOWN

    def text(self) -> str:
        """Return the lock's content, the pid first."""
        return f"{self.pid}\n{self.state}\n{self.socket}\n{self.since}\n"

    @property
    def words(self) -> str:
        """Say in brackets who it is."""
        parts = {f"pid {self.pid}": str(self.pid), f"state folder {self.state}": self.state}
        parts[f"since {self.since}"] = self.since
        return f" ({', '.join(text for text, value in parts.items() if value != _UNKNOWN)})"

    @property
    def hint(self) -> str:
        """Say how to look at it and how to end it."""
        if self.state == _UNKNOWN:
            return f"`ps -p {self.pid}` shows it"
        places = f"--state-folder {self.state} --api-socket {self.socket}"
        return f"`fairlead --url http+unix://{self.socket} status` shows it, `fairlead down {places}` stops it"


def parse(text: str) -> Owner | None:
    """Read a lock's content; None where it is not one of ours. One that says only the pid is an older Fairlead's."""
    lines = text.splitlines()
    if not lines or not lines[0].isdecimal():
        return None
    _, state, socket, since = (*lines[:_LINES], *(_UNKNOWN,) * _LINES)[:_LINES]
    return Owner(pid=int(lines[0]), state=state, socket=socket, since=since)


@contextlib.contextmanager
def held(path: Path, what: str, me: Owner) -> Iterator[None]:
    """Hold a lock as long as the block lasts; its folder is made if absent.

    Args:    what: names what the lock stands for, in messages.
    Raises:  Conflict (`AlreadyRunning`): another process has it.   Unavailable (`FolderUnusable`): no access.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # For us alone: a user who may open the file may lock it, and keep every later start of ours out (flock(2)).
        file = _open_ours(path)
    except OSError as error:
        message = f"cannot use {what}: {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="FolderUnusable", hint="run as root, or choose another") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _taken(file, what) from error
        file.truncate(0)
        file.write(me.text())
        file.flush()
        yield


def _open_ours(path: Path) -> TextIO:
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600), "a+")
    if os.fstat(file.fileno()).st_uid == os.geteuid():
        os.fchmod(file.fileno(), 0o600)  # an older Fairlead's is open to all
    return file


def _taken(file: TextIO, what: str) -> errors.Conflict:
    file.seek(0)
    owner = parse(file.read())
    message = f"{what} is in use by another fairlead{owner.words if owner else ''}"
    hint = owner.hint if owner else "`fairlead status` shows it, `fairlead down` stops it"
    return errors.Conflict(message, reason="AlreadyRunning", hint=hint)


def holder(path: Path) -> Owner | None:
    """Return who holds a lock; None where nobody does. Raises: Denied (`NotRoot`): it may not be read."""
    try:
        with path.open("r") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return parse(file.read())
    except FileNotFoundError:
        pass
    except PermissionError as error:
        message = f"cannot read {path}: only the user of the service may"
        raise errors.Denied(message, reason="NotRoot", hint="run it with sudo") from error
    return None
