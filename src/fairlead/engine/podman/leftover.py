"""Finds and deletes what podman's database does not know of a container: its create or its init was cut short.

`podman init` writes its database after the runtime's create. A podman that is killed in between leaves a process held
before its first instruction, with its devices, and the conmon that watches it; podman calls the container created, and
`podman rm --force` removes nothing but its own entry. conmon is started before the runtime and ends after it, so that a
conmon with this container's bundle says that there is something to take, or will be in a moment.

Where the conmon was killed as well, the runtime's own folder of the container says it: podman's storage has name and id
until the entry is removed.

`podman create` writes its storage before its database. A podman that is killed in between leaves the storage, which
keeps the name; `podman rm --force` removes it.

Leaves to `engine` whether podman knows the container: asking takes the container's lock, so that the answer waits for
an init that is still under way.

Source: podman 4.3, conmon's `--bundle`; runc(8), `delete --force`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from fairlead import command, errors, files, telemetry
from fairlead.engine.podman import cli
from fairlead.engine.podman import host as podman_host

_PATIENCE_S: Final = 20.0
_POLL_S: Final = 0.05


def find_conmons(bundles: Path, name: str, *, proc: Path = Path("/proc")) -> dict[int, str]:
    """Return the container id by process id of each conmon that watches a container of this name.

    Args:    bundles: holds `ID/userdata` for every container of this podman: those of another storage are not ours.
             name: the container's.
    """
    return {pid: identity for pid, identity, _ in _conmons(bundles, name, proc)}


def find_runtimes(bundles: Path, name: str, *, proc: Path = Path("/proc")) -> dict[str, str]:
    """Return by container id which OCI runtime each conmon of `find_conmons` was given; arguments as there."""
    return {identity: runtime for _, identity, runtime in _conmons(bundles, name, proc) if runtime}


def _conmons(bundles: Path, name: str, proc: Path) -> Iterator[tuple[int, str, str]]:
    """Yield process id, container id and runtime."""
    for entry in os.scandir(proc):
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended while it was read
            words = files.read_beginning(Path(entry.path, "cmdline")).split(b"\0")
            identity = _option(words, b"-c")
            if _option(words, b"-n") == name and _option(words, b"-b") == str(bundles / identity / "userdata"):
                yield int(entry.name), identity, _option(words, b"-r")


def find_made(bundles: Path, name: str, runtime: str, *, run: Path = Path("/run")) -> set[str]:
    """Return the ids of containers of this name that the OCI runtime has, with or without a conmon.

    Source: runc(8), `--root`; crun(1), `--root`; containers/storage, containers.json.
    """
    folder = run / Path(runtime).name
    return {row.id for row in _stored(bundles, name) if (folder / row.id).exists()}


def is_stored(bundles: Path, name: str) -> bool:
    """Return whether podman's storage has a container of podman's of this name.

    One that its database does not know was left by a create that was cut short: `podman create` refuses the name.
    Source: containers/storage, containers.json; podman 4.3, RuntimeContainerMetadata.
    """
    return any(row.is_podmans for row in _stored(bundles, name))


def _stored(bundles: Path, name: str) -> list[_Stored]:
    try:
        rows = msgspec.json.decode((bundles / "containers.json").read_bytes(), type=list[_Stored])
    except (OSError, msgspec.MsgspecError):
        return []
    return [row for row in rows if name in row.names]


class _Metadata(msgspec.Struct):
    """What podman notes of a container in its storage; those of other programs have none, or a pod's name in it."""

    name: str = ""
    pod_name: str = msgspec.field(default="", name="pod-name")


class _Stored(msgspec.Struct):
    id: str
    names: list[str] = []
    metadata: str = ""

    @property
    def is_podmans(self) -> bool:
        """Whether podman made it, rather than a build or CRI-O."""
        try:
            found = msgspec.json.decode(self.metadata, type=_Metadata)
        except msgspec.MsgspecError:
            return False
        return found.name in self.names and not found.pod_name


def _option(words: list[bytes], option: bytes) -> str:
    """Return the word after an option, "" where it is not there."""
    with contextlib.suppress(ValueError, IndexError):
        return os.fsdecode(words[words.index(option) + 1])
    return ""


def find_left(host: podman_host.Host, name: str) -> dict[str, str]:
    """Return the ids of containers of this name that a runtime has, or will have in a moment, with that runtime."""
    made = find_made(host.bundle_folder, name, host.info.runtime)
    found = {*find_conmons(host.bundle_folder, name).values(), *made}
    return {**dict.fromkeys(found, host.info.runtime), **find_runtimes(host.bundle_folder, name)}


async def discard(podman: cli.Podman, name: str) -> None:
    """Delete a container that podman does not know as initialised from its runtime; returns once nothing of it is left.

    Raises: Unavailable (`ContainerLeft`): the conmon, or the process, is still there after 20 s.
    """
    host, left = await podman.host(), dict[str, str]()
    try:
        async with asyncio.timeout(_PATIENCE_S):
            while left := await asyncio.to_thread(find_left, host, name):
                for identity, runtime in left.items():
                    # An id that the runtime does not know is refused: no matter, its create may be under way.
                    argv = (runtime, "delete", "--force", identity)
                    await command.run(argv, env=podman.env, timeout_s=cli.SHORT_S)
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        which = ", ".join(sorted(left)) or "the search for it takes too long"
        message = f'container "{name}" was not initialised and its conmon or process does not end: {which}'
        hint = "end what `ps` shows with that id; the container is looked at again"
        raise errors.Unavailable(message, reason="ContainerLeft", hint=hint) from error
    telemetry.log.info("half-made container taken from its runtime", container=name)
