"""Records what we changed in an engine's files: the original, our version, and the request.

One JSON file for each engine and main file. It is written before the first file is touched, so that after a
crash each file can be told: it is as it was, as we made it, or as others changed it. Files of ours that people edited
are kept beside the record when we write over them.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead import errors, files
from fairlead.plan.engineconfig import tree
from fairlead.plan.engineconfig.model import Change, Item, Location, Member, Request
from fairlead.wire.text import typedjson

_SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file."""

    path: str
    original: bytes | None
    """As it was before us; None: it was not there."""
    digest: str
    """Of what we wrote."""
    changes: tuple[Change, ...]
    """What in it is ours; none: all of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """All files of one engine."""

    engine: str
    place: Location
    request: Request
    entries: tuple[Entry, ...]
    folders: tuple[str, ...]
    """Folders we made, outermost first."""


def digest(data: bytes) -> str:
    """Return what a content is recognized by."""
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True, slots=True)
class ChangeRecords:
    """The folder of the records."""

    folder: Path

    def _path(self, engine: str, config: str) -> Path:
        return self.folder / f"{engine}-{digest(config.encode())[:12]}.json"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep others from configuring at the same time. Raises: Unavailable: the folder cannot be made."""
        try:
            self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        except OSError as error:
            message = f"cannot keep records in {self.folder}: {error.strerror}"
            raise errors.Unavailable(
                message, reason="RecordUnwritable", hint="run as root, or set FAIRLEAD_STATE_FOLDER"
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def load(self, engine: str, config: str) -> Record | None:
        """Return the record; None: we did nothing here.

        Raises: ProtocolError (`RecordMalformed`): it cannot be read, and nothing may be guessed from it.
        """
        path = self._path(engine, config)
        try:
            return _decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, errors.Invalid) as error:
            hint = "take our drop-in away by hand, then the record"
            raise errors.ProtocolError(
                f"{path} cannot be read: {error}", reason="RecordMalformed", hint=hint
            ) from error

    def list_places(self) -> tuple[tuple[str, str], ...]:
        """Return engine and main file of every record that can be read."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            with contextlib.suppress(OSError, ValueError, errors.FairleadError):
                record = _decode(path.read_bytes())
                found.append((record.engine, record.place.config))
        return tuple(found)

    def save(self, record: Record) -> None:
        """Write the record. Raises: Unavailable: the disk refuses."""
        data = json.dumps(_encode(record), indent=1).encode()
        files.write_atomic(self._path(record.engine, record.place.config), data, mode=0o600)

    def forget(self, record: Record) -> None:
        """Remove the record."""
        self._path(record.engine, record.place.config).unlink(missing_ok=True)

    def keep(self, path: str, data: bytes) -> Path:
        """Keep what others wrote into a file of ours, and return where."""
        target = self.folder / f"{Path(path).name}.edited-{digest(data)[:8]}"
        files.write_atomic(target, data, mode=0o600)
        return target


def _encode(record: Record) -> dict[str, Any]:
    entries = [
        {
            "path": entry.path,
            "original": None if entry.original is None else base64.b64encode(entry.original).decode(),
            "digest": entry.digest,
            "changes": msgspec.to_builtins(entry.changes),  # a file may hold many, and asdict copies each
        }
        for entry in record.entries
    ]
    return {
        "schema": _SCHEMA,
        "engine": record.engine,
        "place": asdict(record.place),
        "request": asdict(record.request),
        "entries": entries,
        "folders": record.folders,
    }


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    original: bytes | None
    digest: str
    changes: tuple[dict[str, Any], ...]


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    schema: int
    engine: str
    place: Location
    entries: tuple[_Entry, ...]
    folders: tuple[str, ...]
    request: Request | None = None
    earlier: Request | None = msgspec.field(default=None, name="wish")
    """The request under its first key, which records on disk may still have."""


def _decode(data: bytes) -> Record:
    """Raises: ValueError: not a record of this schema; msgspec's errors are ValueErrors."""
    found = typedjson.decode(data, type=_Document)
    if found.schema != _SCHEMA:
        raise ValueError(f"schema {found.schema} is not known")
    request = found.request or found.earlier
    if request is None:
        raise ValueError("it has no request")
    tree.check_asked(found.place, request)
    entries = []
    for entry in found.entries:
        if not entry.path.startswith("/") or not entry.path.isprintable():
            raise ValueError(f"{entry.path!r:.200} is not an absolute path")
        changes = tuple(_change(change) for change in entry.changes)
        entries.append(Entry(path=entry.path, original=entry.original, digest=entry.digest, changes=changes))
    return Record(
        engine=found.engine, place=found.place, request=request, entries=tuple(entries), folders=found.folders
    )


def _change(found: dict[str, Any]) -> Change:
    return msgspec.convert(found, Item) if "key" in found else msgspec.convert(found, Member)
