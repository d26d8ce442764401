"""Keeps the device manager's checkpoint: which devices each container holds and what the plugin answered.

Written before a container is created, so that a kill between any two steps leaves either no allocation or a complete
one. Where the file is damaged, the grants are rebuilt from the labels of the containers that exist.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files
from fairlead.node.kubelet import statefile
from fairlead.wire.kubernetes import names

NAME: Final = "device-manager.json"
VERSION: Final = 1
HOME: Final = "home-id"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one resource that one container holds."""

    pod_uid: str
    container: str
    resource: str
    device_ids: tuple[str, ...]
    response: bytes
    """The plugin's ContainerAllocateResponse, serialised; used again when the container restarts."""
    must_pre_start: bool = False
    """The plugin is to act before every start of the container: none happens without it, nor after our own restart."""


class Checkpoint:
    """One file, one writer."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which must exist."""
        self._file = statefile.StateFile(path=folder / NAME, kind=tuple[Grant, ...], key="grants", version=VERSION)

    def load(self) -> tuple[Grant, ...] | None:
        """Return the grants, as `StateFile.load`."""
        return self._file.load()

    def peek(self) -> tuple[Grant, ...]:
        """Return the grants for another process than the kubelet's, as `StateFile.peek`."""
        return self._file.peek()

    def save(self, grants: Mapping[tuple[str, str, str], Grant]) -> None:
        """Replace the file, as `StateFile.save`; pods are given devices again after a power cut."""
        self._file.save(sorted(grants.values(), key=lambda g: (g.pod_uid, g.container, g.resource)))


def home_id(folder: Path) -> str:
    """Return the mark of this state folder's containers among others on the same machine; made once."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / HOME
    if not path.exists():
        files.write_atomic(path, f"{uuid.uuid4()}\n".encode())
    return read_home(folder)


def read_home(folder: Path) -> str:
    """Return the id that `home_id` has made. Raises: OSError: it has made none.   ProtocolError: it is damaged."""
    path = folder / HOME
    text = path.read_text(errors="replace").strip()
    try:
        return str(uuid.UUID(text))
    except ValueError as error:
        # An empty id would match the containers of every Fairlead on this machine.
        message = f'home-id in {path} is "{text}", not a UUID'
        hint = f"the label {names.HOME} of this machine's containers says what it was"
        raise errors.ProtocolError(message, reason="HomeIdDamaged", hint=hint) from error
