"""Records that a container's start was asked for, and corrects podman's database where it missed the start.

podman writes down that a container runs after the OCI runtime has started it. A podman that is killed in between leaves
a container that runs and is initialised in podman's database: `podman start` fails. If it has ended since, conmon's
clean-up leaves it as created: `podman start` would run it a second time. A file in the container's bundle, written
before the start is requested, distinguishes such a container from one that never ran. podman removes the file with the
container. The log is marked at the same time: conmon replaces it when it is full, and a reader of the next must know.

Leaves to `engine` when a start is in doubt.

Source: podman 4.3 `libpod/oci_conmon_common.go` (StartContainer, runtime flags), runc(8) and crun(1) (`state`).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Final

import msgspec

from fairlead import command, errors, telemetry
from fairlead.engine.podman import cli, leftover

_FILE: Final = "fairlead-start"
_MARKED: Final = b"log marked\n"
_FIRST: Final = "user.fairlead.first-log"
_LOG: Final = "ctr.log"
"""Where podman has conmon write, beside the bundle's other files."""


class _State(msgspec.Struct):
    status: str = ""


def is_noted(bundle: Path) -> bool:
    """Return whether a start was asked for and not refused."""
    return (bundle / _FILE).exists()


def mark_log(path: Path) -> bool:
    """Mark the log of a container that has not been started; return whether its file system takes marks."""
    try:
        os.setxattr(path, _FIRST, b"")
    except OSError:
        return False
    return True


def is_first_log(file: int) -> bool:
    """Return whether an open log has the mark: one that conmon began in its place has none."""
    return _FIRST in os.listxattr(file)


def is_log_marked(bundle: Path) -> bool:
    """Return whether the container's first log was marked before its start."""
    try:
        return (bundle / _FILE).read_bytes() == _MARKED
    except OSError:
        return False


def note(bundle: Path) -> None:
    """Record that a start is asked for, and mark the log as the first. Raises: Unavailable (`StartUnrecorded`)."""
    if is_noted(bundle):
        return  # it may have run since, and the log be another
    try:
        (bundle / _FILE).write_bytes(_MARKED if mark_log(bundle / _LOG) else b"")
    except OSError as error:
        message = f"cannot record in {bundle} that a container is started: {error.strerror}"
        raise errors.Unavailable(message, reason="StartUnrecorded", hint="is podman's storage full?") from error


def forget(bundle: Path) -> None:
    """Record that podman refused the start."""
    (bundle / _FILE).unlink(missing_ok=True)


async def read_status(podman: cli.Podman, name: str, identity: str) -> str:
    """Return the OCI runtime's word for a container; "": it does not know the container.

    A container may have a runtime of its own, which its conmon was given.
    """
    host = await podman.host()
    runtimes = await asyncio.to_thread(leftover.find_runtimes, host.bundle_folder, name)
    runtime = runtimes.get(identity, host.info.runtime)
    result = await command.run((runtime, "state", identity), env=podman.env, timeout_s=cli.SHORT_S)
    try:
        return msgspec.json.decode(result.stdout, type=_State).status if result.code == 0 else ""
    except msgspec.MsgspecError:
        return ""


async def complete(podman: cli.Podman, name: str) -> None:
    """Have podman write down that a container runs which the OCI runtime started. Raises: as `podman start`.

    podman is asked to start it with a flag for the runtime, so that it calls `runc --version start ID`: that prints the
    version and touches no container, and podman takes the start for done.
    """
    await podman.checked(f'container "{name}"', "start", "--runtime-flag=version", "start", "--", name)
    telemetry.log.warning("container start completed in podman's database", container=name)
