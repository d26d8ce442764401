"""Keeps what firmware was seen, what persons approved and what one of two proposed, in files beside the ledger.

The agent writes what it learned, and only that; approvals are written for persons, by `fairlead lease baseline` and by
the API, one after the other.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from fairlead import errors, files
from fairlead.frozen import frozen
from fairlead.model.evidence import Evidence
from fairlead.plan.lease import baseline
from fairlead.plan.lease.baseline import Baseline, Decided, KnownBoard, Learned
from fairlead.wire.text import typedjson

T = TypeVar("T")

LEARNED: Final = "boards-seen.json"
APPROVED: Final = "baselines.json"
PROPOSED: Final = "baselines-proposed.json"
LOCK: Final = "baselines.lock"


@frozen
class Known:
    """What is known of one board and its kind."""

    card: KnownBoard | None
    """The board as it was known before; None: it is new."""
    allowed: Baseline | None
    """What is in force for its kind."""
    proposed: Baseline | None
    """Where nothing is: what one person of two approved."""


class KnownBoards:
    """Learns boards from their readings; the only writer of what was seen on this node."""

    def __init__(self, folder: Path, approvals: int) -> None:
        """Read nothing yet. Args: approvals: how many persons must approve a baseline."""
        self._folder, self._approvals = folder, approvals
        self._turn = asyncio.Lock()

    def stamp(self) -> object:
        """Return a value that changes when a person approves or proposes something."""
        return stamp(self._folder)

    async def learn(self, seen: Evidence) -> Known:
        """Return what was known of a board before this reading, which is learned.

        Raises: ProtocolError (`BaselineDamaged`); Unavailable: the disk refuses.
        """
        async with self._turn:
            return await asyncio.to_thread(self._learn, seen)

    def _learn(self, seen: Evidence) -> Known:
        learned = read_learned(self._folder)
        more = dataclasses.replace(baseline.learn(learned, seen), approvals=self._approvals)
        if more != learned:
            write_learned(self._folder, more)
        decided = read_decided(self._folder)
        allowed = baseline.in_force(decided, seen.board, self._approvals)
        half = None if allowed is not None else baseline.waiting(decided, seen.board, self._approvals)
        return Known(card=learned.cards.get(str(seen.gpu)), allowed=allowed, proposed=half)


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
