"""Keeps one kind of state of the kubelet in one file: a list of values, a version and a checksum of the bytes.

Written whole (temporary file, fsync, rename), so that a kill leaves either the old list or the new one. A file that
cannot be read is set aside, never overwritten. One from a newer version is left alone and refused.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from fairlead import errors, files, telemetry
from fairlead.wire.text import typedjson

T = TypeVar("T")
UNREADABLE: Final = "CheckpointUnreadable"


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    checksum: str


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile(Generic[T]):
    """One file, one writer."""

    path: Path
    kind: type[tuple[T, ...]]
    key: str
    """The key of the list in the document."""
    version: int
    """The newest that this program reads, and the one that it writes."""

    def load(self) -> tuple[T, ...] | None:
        """Return the values; empty where there is no file, None where it was damaged and has been set aside.

        Raises: Unavailable: the file is from a newer version (left as it is), or cannot be opened.
        """
        files.sweep(self.path)
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return ()
        except OSError as error:
            message = f"cannot read checkpoint {self.path}: {error.strerror}"
            raise errors.Unavailable(message, reason=UNREADABLE) from error
        self._refuse_newer(data)
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            kept = files.set_aside(self.path, why="damaged")
            telemetry.log.error("checkpoint damaged, set aside", path=str(kept), error=str(error))
            return None

    def peek(self) -> tuple[T, ...]:
        """Return the values for another process than the kubelet's, which changes nothing.

        Raises: Unavailable: there is no file, others than root and this user could have written it, or it is damaged.
        """
        try:
            with self.path.open("rb") as file:
                statuses = (os.fstat(file.fileno()), self.path.parent.stat())
                data = file.read()
        except OSError as error:
            message = f"cannot read checkpoint {self.path}: {error.strerror}"
            raise errors.Unavailable(message, reason=UNREADABLE) from error
        if any(status.st_uid not in {0, os.geteuid()} or status.st_mode & 0o022 for status in statuses):
            message = f"others than root could have written checkpoint {self.path}"
            hint = "chown it and its folder to root and chmod go-w, once you know what they say"
            raise errors.Unavailable(message, reason="CheckpointUntrusted", hint=hint)
        self._refuse_newer(data)
        try:
            return self._decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            message = f"checkpoint {self.path} is damaged: {error}"
            raise errors.Unavailable(message, reason=UNREADABLE) from error

    def save(self, items: Sequence[T]) -> None:
        """Replace the file. Raises: Unavailable: the disk refuses; the old file is untouched.

        A power cut may bring back the whole old file. It also ends every container.
        """
        body = msgspec.json.encode(items)
        document = {"version": self.version, "checksum": _checksum(body), self.key: msgspec.Raw(body)}
        files.write_atomic(self.path, msgspec.json.encode(document), mode=0o600, keeps_rename=False)

    def _refuse_newer(self, data: bytes) -> None:
        try:
            version = typedjson.decode(data, type=_Version).version
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return
        if version > self.version:
            message = f"checkpoint {self.path} has version {version}, this program reads up to {self.version}"
            hint = "start the newer fairlead again, or move the file away once no container runs"
            raise errors.Unavailable(message, reason="StateFromNewerVersion", hint=hint)

    def _decode(self, data: bytes) -> tuple[T, ...]:
        """Raises: MsgspecError, UnicodeDecodeError."""
        head = typedjson.decode(data, type=_Head)
        body = bytes(typedjson.decode(data, type=dict[str, msgspec.Raw]).get(self.key, b""))
        if head.checksum != _checksum(body):
            raise msgspec.DecodeError("checksum differs")
        return typedjson.decode(body, type=self.kind)


def _checksum(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
