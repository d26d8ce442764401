"""Keeps folders of ours closed to other users of the machine, whatever lies in them.

A container's root writes what it likes into a volume, a program with set-uid too, and a file is safe from the other
accounts of the machine only where no folder above it lets them pass. Each start therefore makes such a folder or closes
it, and takes none that is another user's. Modes are set on the open folder, so that no link can be put in its place
meanwhile. An access control list gives nothing more: chmod takes its mask down to the group's bits (acl(5)).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from fairlead import errors, telemetry
from fairlead.settings import Settings

OURS: Final = 0o700
"""For the user of the service alone."""
PASSABLE: Final = 0o755
"""For sockets that others may open: they may enter, and put nothing there."""

_UMASK: Final = 0o022


def set_umask() -> None:
    """Have this process make files as the code says, whatever mask root's shell has.

    With a mask of 077 members of api.group do not pass the folder of their socket, and roots of user namespaces not
    those of their devices. With one of 0 other accounts write where they may read.
    """
    os.umask(_UMASK)


def judge(mode: int, owner: int, *, wanted: int, me: int) -> str:
    """Return what is wrong with a folder: `foreign`, `open`; empty: nothing. Pure.

    Args:    mode, owner: the folder's.   wanted: the widest mode that it may have.   me: the user of the service.
    """
    if owner not in {0, me}:
        return "foreign"
    return "open" if stat.S_IMODE(mode) & ~wanted & 0o077 else ""


def ensure(folder: Path, wanted: int = OURS) -> str:
    """Make a folder, or close one that is there; its parents are made as any folder is.

    Returns: what was changed, for the log; empty: nothing was.
    Raises:  Denied (`FolderForeign`): another user owns it.   Unavailable (`FolderUnusable`): no access.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not folder.exists():
            folder.mkdir(mode=wanted, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return _narrow(handle, folder, wanted)
        finally:
            os.close(handle)
    except OSError as error:
        message = f"cannot use the folder {folder}: {error.strerror}"
        raise errors.Unavailable(message, reason="FolderUnusable", hint="run as root, or choose another") from error


def _narrow(handle: int, folder: Path, wanted: int) -> str:
    found = os.fstat(handle)
    mode = stat.S_IMODE(found.st_mode)
    verdict = judge(mode, found.st_uid, wanted=wanted, me=os.geteuid())
    if verdict == "foreign":
        message = f"the folder {folder} belongs to user {found.st_uid}, who could read and change what is in it"
        hint = f"look at what is in it; then `chown 0:0 {folder}`, or choose another folder"
        raise errors.Denied(message, reason="FolderForeign", hint=hint)
    if not verdict:
        return ""
    os.fchmod(handle, mode & wanted)
    return f"{folder} was open to other users (mode {mode:04o}) and is closed now (mode {mode & wanted:04o})"


def problem(folder: Path, wanted: int = OURS) -> str:
    """Return what is wrong with a folder; empty: nothing, or it is not there or cannot be looked at."""
    try:
        found = folder.stat()
    except OSError:
        return ""
    verdict = judge(found.st_mode, found.st_uid, wanted=wanted, me=0)
    if verdict == "foreign":
        return f"{folder} belongs to user {found.st_uid}"
    return f"{folder} is open to other users (mode {stat.S_IMODE(found.st_mode):04o})" if verdict else ""


def of_state(config: Settings) -> dict[Path, int]:
    """Return the folders of the state that hold what containers wrote or were given, with the widest mode of each."""
    state = config.state.folder
    inner = (state / "pods", state / "kubelet", config.claims_folder, config.registries_folder, config.lease_folder)
    return dict.fromkeys((state, *inner), OURS)


def of_run(config: Settings) -> dict[Path, int]:
    """Return the folders of sockets, with the widest mode of each. Members of api.group pass the first."""
    run = config.state.run
    inner = (config.kubelet_folder, config.pod_resources.parent)
    return {run: PASSABLE, **{one: OURS for one in inner if run in one.parents}}


def close(wanted: dict[Path, int]) -> None:
    """Make folders, or close those that are open, and say so in the log. Raises: as `ensure`."""
    for folder, mode in wanted.items():
        if changed := ensure(folder, mode):
            telemetry.log.warning("folder closed to other users", path=str(folder), reason=changed)
