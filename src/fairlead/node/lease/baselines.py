"""Keeps what firmware was seen, what persons approved and what one of two proposed, in files beside the ledger.

The agent writes what it learned, and only that; approvals are written for persons, by `fairlead lease baseline` and by
the API, one after the other.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fairlead import errors, files
from fairlead.plan.lease.baseline import Baseline, Decided, Learned
from fairlead.wire.text import typedjson

T = TypeVar("T")

LEARNED: Final = "boards-seen.json"
APPROVED: Final = "baselines.json"
PROPOSED: Final = "baselines-proposed.json"
LOCK: Final = "baselines.lock"


def read_learned(folder: Path) -> Learned:
    """Return what was seen. Raises: ProtocolError (`BaselineDamaged`)."""
    path = folder / LEARNED
    return _decode(path, Learned) if path.exists() else Learned()


def write_learned(folder: Path, learned: Learned) -> None:
    """Keep what was seen. Raises: Unavailable: the disk refuses."""
    files.write_atomic(folder / LEARNED, msgspec.json.encode(learned), mode=0o600)


def read_decided(folder: Path) -> Decided:
    """Return what persons decided. Raises: ProtocolError (`BaselineDamaged`)."""
    return Decided(approved=_by_board(folder / APPROVED), proposed=_by_board(folder / PROPOSED))


def decide(folder: Path, act: Callable[[Learned, Decided], Decided]) -> Decided:
    """Change what persons decided, and return it; another process that decides waits until that is written.

    Raises: ProtocolError (`BaselineDamaged`); Unavailable: the disk refuses; what `act` refuses.
    """
    if not folder.is_dir():
        return act(Learned(), Decided())  # nothing was seen here: it is for `act` to say so
    try:
        lock = (folder / LOCK).open("w")
    except OSError as error:
        message = f"{folder / LOCK} cannot be written: {error.strerror}"
        raise errors.Unavailable(message, reason="BaselineUnwritable", hint="run as root") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        decided = act(read_learned(folder), read_decided(folder))
        write_decided(folder, decided)
    return decided


def write_decided(folder: Path, decided: Decided) -> None:
    """Keep what persons decided; approvals first, so that none is lost. Raises: Unavailable: the disk refuses."""
    files.write_atomic(folder / APPROVED, msgspec.json.encode(decided.approved), mode=0o600)
    files.write_atomic(folder / PROPOSED, msgspec.json.encode(decided.proposed), mode=0o600)


def stamp(folder: Path, *, is_whole: bool = False) -> tuple[tuple[int, int] | None, ...]:
    """Return a value that changes with what persons decided; `is_whole`: and with what was seen."""
    names = (LEARNED, APPROVED, PROPOSED) if is_whole else (APPROVED, PROPOSED)
    return tuple(files.stamp(folder / name) for name in names)


def _by_board(path: Path) -> Mapping[str, Baseline]:
    return _decode(path, dict[str, Baseline]) if path.exists() else {}


def _decode(path: Path, kind: type[T]) -> T:
    try:
        return typedjson.decode(path.read_bytes(), type=kind)
    except (msgspec.MsgspecError, OSError) as error:
        message = f"{path} cannot be read: {error}"
        hint = "no GPU is verified by it: mend it, or move it away"
        raise errors.ProtocolError(message, reason="BaselineDamaged", hint=hint) from error
