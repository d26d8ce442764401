"""Locks what only one Fairlead on a machine may use: state folder, GPUs, CDI specs.

Each lock is a file that is held as long as the process lives and names its owner, which a refusal shows. Real
GPUs have one owner per root of the hardware, whatever the folders. Simulated GPUs are each service's own: where another
service has the folder of CDI specs, this one gets a folder that no other process sees.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors, settings
from fairlead.kernel import heldlock
from fairlead.kernel.mounting import mountnamespace
from fairlead.node.isolation import ownfolder

LOCKS: Final = Path("/run/lock")
RESTORING: Final = ".restoring"
"""Of the state folder: `fairlead state restore` moves files, or was interrupted doing so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """The folder of CDI specs that was taken, and a note."""

    cdi_folder: Path
    """The folder of our specs as other processes of the machine see it."""
    note: str = ""
    """What a person should know; empty: nothing."""


@contextlib.contextmanager
def own_machine(config: settings.Settings) -> Iterator[Owned]:
    """Hold the state folder, the GPUs and the folder of CDI specs for this process.

    Raises: Conflict: another Fairlead has one of them; Unavailable: no access.
    """
    me = _me(config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(own_state(config))
        _refuse_half_restored(config.state.folder)
        if not config.silicon.simulate:
            stack.enter_context(heldlock.held(silicon_lock(config.silicon.root), "this machine's hardware", me))
        yield stack.enter_context(_specs(config, me))


def _refuse_half_restored(folder: Path) -> None:
    if (folder / RESTORING).exists():
        message = f"a restore into state folder {folder} was interrupted: what is there is no whole state"
        hint = "`fairlead state restore --set-aside FILE` does it again"
        raise errors.Conflict(message, reason="RestoreUnfinished", hint=hint)


@contextlib.contextmanager
def own_state(config: settings.Settings) -> Iterator[None]:
    """Hold the state folder alone, closed to other users with all that is in it. Raises: as `own_machine`, Denied."""
    ownfolder.close(ownfolder.of_state(config))
    with heldlock.held(config.state.folder / "lock", f"state folder {config.state.folder}", _me(config)):
        yield


def _me(config: settings.Settings) -> heldlock.Owner:
    return heldlock.Owner(
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
def _specs(config: settings.Settings, me: heldlock.Owner) -> Iterator[Owned]:
    folder = config.node.cdi_folder
    what = f"CDI folder {folder}"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(heldlock.held(folder / heldlock.CDI, what, me))
        except errors.Conflict as error:
            if not config.silicon.simulate:
                raise
            mountnamespace.hide(folder)
            stack.enter_context(heldlock.held(folder / heldlock.CDI, what, me))
            yield Owned(cdi_folder=Path(f"/proc/{me.pid}/root") / folder.absolute().relative_to("/"), note=_note(error))
            return
        yield Owned(cdi_folder=folder)


def _note(error: errors.Conflict) -> str:
    return f"{error.message}: this one keeps its simulated GPUs and their CDI specs to itself"
