"""Takes from the OCI runtime what podman's database does not know of: containers whose init was cut short.

`podman init` writes its database after the runtime's create. A podman that is killed in between leaves a process held
before its first instruction, with its devices, and the conmon that watches it; podman calls the container created, and
`podman rm --force` removes nothing but its own entry. conmon is started before the runtime and ends after it, so that a
conmon with this container's bundle says that there is something to take, or will be in a moment.

Leaves to `engine` whether podman knows the container: asking takes the container's lock, so that the answer waits for
an init that is still under way.

Source: podman 4.3, conmon's `--bundle`; runc(8), `delete --force`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path
from typing import Final

from fairlead import command, errors, telemetry
from fairlead.engine.podman import cli

_PATIENCE_S: Final = 20.0
_POLL_S: Final = 0.05


def find_conmons(bundles: Path, name: str, *, proc: Path = Path("/proc")) -> dict[int, str]:
    """Return the container id by process id of each conmon that watches a container of this name.

    Args:    bundles: holds `ID/userdata` for every container of this podman: those of another storage are not ours.
             name: the container's.
    """
    found = {}
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended while it was read
            words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            identity = _option(words, b"-c")
            if _option(words, b"-n") == name and _option(words, b"-b") == str(bundles / identity / "userdata"):
                found[int(entry.name)] = identity
    return found


def _option(words: list[bytes], option: bytes) -> str:
    """Return the word after an option, "" where it is not there."""
    with contextlib.suppress(ValueError, IndexError):
        return os.fsdecode(words[words.index(option) + 1])
    return ""


async def discard(podman: cli.Podman, name: str) -> None:
    """Delete a container that podman does not know as initialised from its runtime; returns once its conmon is gone.

    Raises: Unavailable (`ContainerLeft`): the conmon is still there after 20 s.
    """
    host = await podman.host()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while left := await asyncio.to_thread(find_conmons, host.bundle_folder, name):
                for identity in set(left.values()):
                    # An id that the runtime does not know is refused: no matter, its create may be under way.
                    argv = (host.info.runtime, "delete", "--force", identity)
                    await command.run(argv, env=podman.env, timeout_s=cli.SHORT_S)
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        message = f'container "{name}" was not initialised and its conmon (process {min(left)}) does not end'
        hint = "end that process; the container is looked at again"
        raise errors.Unavailable(message, reason="ContainerLeft", hint=hint) from error
    telemetry.log.info("half-made container taken from its runtime", container=name)
