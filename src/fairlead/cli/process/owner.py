"""Holds what one Fairlead on a machine has for itself: state folder, GPUs, CDI specs.

Each is a file that is locked as long as the process lives; it says whose it is, so that a refusal names the other. Real
GPUs have one owner per root of the hardware, whatever the folders. Simulated GPUs are each service's own: where another
service has the folder of CDI specs, this one gets a folder that no other process sees.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from fairlead import errors, settings
from fairlead.kernel import mountnamespace

LOCKS: Final = Path("/run/lock")
_CDI_LOCK: Final = ".fairlead.lock"
_LINES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who holds a lock, as the file says."""

    pid: int
    state: str
    socket: str
    since: str

    def text(self) -> str:
        """Return the lock's content, the pid first."""
        return f"{self.pid}\n{self.state}\n{self.socket}\n{self.since}\n"

    @property
    def words(self) -> str:
        """Say in brackets who it is."""
        return f" (pid {self.pid}, state folder {self.state}, since {self.since})"

    @property
    def hint(self) -> str:
        """Say how to look at it and how to end it."""
        places = f"--state-folder {self.state} --api-socket {self.socket}"
        return f"`fairlead --url http+unix://{self.socket} status` shows it, `fairlead down {places}` stops it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """What was found while taking the machine."""

    cdi_folder: Path
    """The folder of our specs as other processes of the machine see it."""
    note: str = ""
    """What a person should know; empty: nothing."""


def parse(text: str) -> Owner | None:
    """Read a lock's content; None where it is not one of ours. One that says only the pid is an older Fairlead's."""
    lines = text.splitlines()
    if not lines or not lines[0].isdecimal():
        return None
    _, state, socket, since = (*lines[:_LINES], *("?",) * _LINES)[:_LINES]
    return Owner(pid=int(lines[0]), state=state, socket=socket, since=since)


@contextlib.contextmanager
def own_machine(config: settings.Settings) -> Iterator[Owned]:
    """Hold the state folder, the GPUs and the folder of CDI specs for this process.

    Raises: Conflict: another Fairlead has one of them; Unavailable: no access.
    """
    me = _me(config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_state(config))
        if not config.silicon.simulate:
            stack.enter_context(_held(silicon_lock(config.silicon.root), "this machine's hardware", me))
        yield stack.enter_context(_specs(config, me))


@contextlib.contextmanager
def own_state(config: settings.Settings) -> Iterator[None]:
    """Hold the state folder alone. Raises: as `own_machine`."""
    with _held(config.state.folder / "lock", f"state folder {config.state.folder}", _me(config)):
        yield


def _me(config: settings.Settings) -> Owner:
    return Owner(
        pid=os.getpid(),
        state=str(config.state.folder.absolute()),
        socket=str(config.api_socket.absolute()),
        since=dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )


def silicon_lock(root: Path) -> Path:
    """Return the file that the owner of the hardware under a root locks."""
    real = str(root.resolve())
    tail = "" if real == "/" else "-" + hashlib.sha256(real.encode()).hexdigest()[:12]
    return LOCKS / f"fairlead-silicon{tail}.lock"


@contextlib.contextmanager
def _specs(config: settings.Settings, me: Owner) -> Iterator[Owned]:
    folder = config.node.cdi_folder
    what = f"CDI folder {folder}"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(_held(folder / _CDI_LOCK, what, me))
        except errors.Conflict as error:
            if not config.silicon.simulate:
                raise
            mountnamespace.hide(folder)
            stack.enter_context(_held(folder / _CDI_LOCK, what, me))
            yield Owned(cdi_folder=Path(f"/proc/{me.pid}/root") / folder.absolute().relative_to("/"), note=_note(error))
            return
        yield Owned(cdi_folder=folder)


def _note(error: errors.Conflict) -> str:
    return f"{error.message}: this one keeps its simulated GPUs and their CDI specs to itself"


@contextlib.contextmanager
def _held(path: Path, what: str, me: Owner) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+")
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


def _taken(file: TextIO, what: str) -> errors.Conflict:
    file.seek(0)
    owner = parse(file.read())
    message = f"{what} is in use by another fairlead{owner.words if owner else ''}"
    hint = owner.hint if owner and owner.state != "?" else "`fairlead status` shows it, `fairlead down` stops it"
    return errors.Conflict(message, reason="AlreadyRunning", hint=hint)
