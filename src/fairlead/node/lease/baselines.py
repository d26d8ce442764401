"""Keeps what firmware was seen and what a person approved, in two files beside the ledger.

The agent writes what it learned, and only that; approvals are written by `fairlead lease baseline`, and only by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fairlead import errors, files
from fairlead.plan.lease.baseline import Baseline, Learned
from fairlead.wire.text import typedjson

T = TypeVar("T")

LEARNED: Final = "boards-seen.json"
APPROVED: Final = "baselines.json"


def read_learned(folder: Path) -> Learned:
    """Return what was seen. Raises: ProtocolError (`BaselineDamaged`)."""
    path = folder / LEARNED
    return _decode(path, Learned) if path.exists() else Learned()


def write_learned(folder: Path, learned: Learned) -> None:
    """Keep what was seen. Raises: Unavailable: the disk refuses."""
    files.write_atomic(folder / LEARNED, msgspec.json.encode(learned), mode=0o600)


def read_approved(folder: Path) -> Mapping[str, Baseline]:
    """Return approved baselines by board. Raises: ProtocolError (`BaselineDamaged`)."""
    path = folder / APPROVED
    return _decode(path, dict[str, Baseline]) if path.exists() else {}


def write_approved(folder: Path, approved: Mapping[str, Baseline]) -> None:
    """Keep approvals. Raises: Unavailable: the disk refuses."""
    files.write_atomic(folder / APPROVED, msgspec.json.encode(approved), mode=0o600)


def stamp(folder: Path) -> tuple[int, int] | None:
    """Return what differs once approvals were written; None: there are none."""
    try:
        facts = (folder / APPROVED).stat()
    except OSError:
        return None
    return facts.st_ino, facts.st_mtime_ns


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return typedjson.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, OSError) as error:
        message = f"{path} cannot be read: {error}"
        hint = "no GPU is verified by it: mend it, or move it away"
        raise errors.ProtocolError(message, reason="BaselineDamaged", hint=hint) from error
