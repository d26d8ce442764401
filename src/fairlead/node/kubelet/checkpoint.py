"""Keeps the device manager's checkpoint: which devices each container holds and what the plugin answered.

Written whole (temporary file, fsync, rename) before a container is created, so that a kill between any two steps leaves
either no allocation or a complete one. A file that cannot be read is set aside, never overwritten; the grants are then
rebuilt from the labels of the containers that exist. A file from a newer version is left alone and refused.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from fairlead import errors, files, telemetry
from fairlead.wire.kubernetes import names
from fairlead.wire.text import typedjson

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


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    checksum: str
    grants: msgspec.Raw


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    version: int


class Checkpoint:
    """One file, one writer."""

    def __init__(self, folder: Path) -> None:
        """Take the folder, which must exist."""
        self._path = folder / NAME

    def load(self) -> tuple[Grant, ...] | None:
        """Return the grants; empty where there is no file, None where it was damaged and has been set aside.

        Raises: Unavailable: the file is from a newer version (left as it is), or cannot be opened.
        """
        files.sweep(self._path)
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            message = f"cannot read checkpoint {self._path}: {error.strerror}"
            raise errors.Unavailable(message, reason="CheckpointUnreadable") from error
        self._refuse_newer(data)
        try:
            return _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            kept = files.set_aside(self._path, why="damaged")
            telemetry.log.error("checkpoint damaged, set aside", path=str(kept), error=str(error))
            return None

    def peek(self) -> tuple[Grant, ...]:
        """Return the grants for another process than the kubelet's, which changes nothing.

        Raises: Unavailable: there is no file, others than root and this user could have written it, or it is damaged.
        """
        try:
            with self._path.open("rb") as file:
                statuses = (os.fstat(file.fileno()), self._path.parent.stat())
                data = file.read()
        except OSError as error:
            message = f"cannot read checkpoint {self._path}: {error.strerror}"
            raise errors.Unavailable(message, reason="CheckpointUnreadable") from error
        if any(status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o022 for status in statuses):
            message = f"others than root could have written checkpoint {self._path}"
            hint = "chown it and its folder to root and chmod go-w, once you know what they say"
            raise errors.Unavailable(message, reason="CheckpointUntrusted", hint=hint)
        self._refuse_newer(data)
        try:
            return _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            message = f"checkpoint {self._path} is damaged: {error}"
            raise errors.Unavailable(message, reason="CheckpointUnreadable") from error

    def _refuse_newer(self, data: bytes) -> None:
        try:
            version = typedjson.decode(data, type=_Version).version
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if version > VERSION:
            message = f"checkpoint {self._path} has version {version}, this program reads up to {VERSION}"
            hint = "start the newer fairlead again, or move the file away once no container runs"
            raise errors.Unavailable(message, reason="StateFromNewerVersion", hint=hint)

    def save(self, grants: Mapping[tuple[str, str, str], Grant]) -> None:
        """Replace the file. Raises: Unavailable: the disk refuses; the old file is untouched.

        A power cut may bring back the whole old file. It also ends every container, so pods are given devices anew.
        """
        body = msgspec.json.encode(sorted(grants.values(), key=lambda g: (g.pod_uid, g.container, g.resource)))
        document = _Document(version=VERSION, checksum=_checksum(body), grants=msgspec.Raw(body))
        files.write_atomic(self._path, msgspec.json.encode(document), mode=0o600, keeps_rename=False)


def _decode(data: bytes) -> tuple[Grant, ...]:
    """Raises: MsgspecError, UnicodeDecodeError."""
    document = typedjson.decode(data, type=_Document)
    if document.checksum != _checksum(bytes(document.grants)):
        raise msgspec.DecodeError("checksum differs")
    return typedjson.decode(document.grants, type=tuple[Grant, ...])


def _checksum(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


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
