"""Keeps how each ResourceClaim is prepared, as notes beside the ledger's rows.

A note is written in the transaction that gives the claim its GPUs and removed in the one that takes them back, so that
neither is ever there without the other. A note that cannot be read is set aside in a file of its own and counts as a
claim that was begun; a note of a newer version is left as it is, and its claim is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from fairlead import errors, files, telemetry
from fairlead.plan.dra.preparation import VERSION, Preparation
from fairlead.wire.text import typedjson

ASIDE: Final = "claims-damaged"
"""Folder beside the ledger in which damaged notes are kept."""
_MODE: Final = 0o600


class _Version(msgspec.Struct, frozen=True):
    version: int = 0


class Notes(Protocol):
    """What the ledger's gate keeps."""

    @property
    def notes(self) -> Mapping[str, str]:
        """Documents by the claim's UID. Raises: Unavailable: the ledger is not open."""
        ...


class Journal:
    """The prepared claims of this node."""

    def __init__(self, notes: Notes, folder: Path) -> None:
        """Take where the notes are. Args: folder: of the ledger, where a damaged note is set aside."""
        self._notes, self._folder = notes, folder
        self._aside: set[str] = set()
        self._decoded: dict[str, tuple[str, Preparation | None]] = {}
        """By UID: the note, and what it says."""

    def find(self, uid: str) -> Preparation | None:
        """Return how a claim is prepared; None: it is not, or its note is damaged.

        Raises: Unavailable: the ledger is not open.   ProtocolError (`ClaimNoteNewer`): a newer version wrote the note.
        """
        document = self._notes.notes.get(uid)
        return None if document is None else self._decode(uid, document)

    def all(self) -> tuple[Preparation, ...]:
        """Return every prepared claim whose note this version reads. Raises: Unavailable."""
        found: list[Preparation] = []
        notes = self._notes.notes
        self._decoded = {uid: kept for uid, kept in self._decoded.items() if uid in notes}
        for uid, document in notes.items():
            try:
                one = self._decode(uid, document)
            except errors.ProtocolError as error:
                telemetry.log.warning("claim not read", claim=uid, reason=error.reason, error=error.message)
                continue
            found += [one] if one is not None else []
        return tuple(found)

    def uids(self) -> frozenset[str]:
        """Return the UIDs of all claims that have a note. Raises: Unavailable."""
        return frozenset(self._notes.notes)

    def _decode(self, uid: str, document: str) -> Preparation | None:
        kept = self._decoded.get(uid)
        if kept is None or kept[0] != document:
            kept = self._decoded[uid] = (document, self._read(uid, document))
        return kept[1]

    def _read(self, uid: str, document: str) -> Preparation | None:
        try:
            if typedjson.decode(document, type=_Version).version > VERSION:
                message = f"claim {uid} was prepared by a newer version of fairlead"
                raise errors.ProtocolError(message, reason="ClaimNoteNewer", hint="run that version; its note is kept")
            found = typedjson.decode(document, type=Preparation)
        except msgspec.MsgspecError as error:
            self._set_aside(uid, document, str(error))
            return None
        if found.uid == uid:
            return found
        self._set_aside(uid, document, f"it is of claim {found.uid}")
        return None

    def _set_aside(self, uid: str, document: str, why: str) -> None:
        if uid in self._aside:
            return
        name = "".join(letter if letter.isalnum() or letter == "-" else "_" for letter in uid)[:64]
        path = self._folder / ASIDE / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.write_atomic(path, document.encode(), mode=_MODE)
        self._aside.add(uid)
        telemetry.log.error("claim's note damaged, set aside", claim=uid, path=str(path), error=why)


def emit(preparation: Preparation) -> str:
    """Return the note of a prepared claim."""
    return msgspec.json.encode(preparation).decode()
