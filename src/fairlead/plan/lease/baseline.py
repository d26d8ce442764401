"""Declares which firmware is allowed on which kind of board, and learns it from boards that are there. Pure.

What is learned allows nothing: a person approves it. A board is known by its PCI device, subsystem and part number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fairlead import errors
from fairlead.model.evidence import Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What is allowed on one kind of board, or was seen on it."""

    board: str
    vbios: tuple[str, ...] = ()
    inforom: tuple[str, ...] = ()
    link_width: int = 0
    """Fewest PCIe lanes."""
    ecc: bool | None = None
    """Mode of ECC; None: the board has none."""
    by: str = ""
    """Who approved it; empty: it is not approved."""
    at: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One board, as it was first seen under its UUID."""

    serial: str = ""
    board: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What was seen: kinds of boards by name, single boards by UUID."""

    boards: Mapping[str, Baseline] = dataclasses.field(default_factory=dict)
    cards: Mapping[str, Card] = dataclasses.field(default_factory=dict)


def learn(known: Learned, seen: Evidence) -> Learned:
    """Return what is known with one more reading; a card that is known keeps what was first seen of it."""
    before = known.boards.get(seen.board, Baseline(board=seen.board))
    board = dataclasses.replace(
        before,
        vbios=_with(before.vbios, seen.vbios),
        inforom=_with(before.inforom, seen.inforom),
        link_width=max(before.link_width, seen.link_width or 0),
        ecc=seen.ecc_mode if before.ecc is None else before.ecc,
    )
    cards = known.cards
    if str(seen.gpu) not in cards:
        cards = {**cards, str(seen.gpu): Card(serial=seen.serial, board=seen.board)}
    return Learned(boards={**known.boards, seen.board: board}, cards=cards)


def approve(allowed: Mapping[str, Baseline], known: Learned, board: str, *, by: str, at: float) -> dict[str, Baseline]:
    """Return the approved baselines with all that was seen on one kind of board allowed. Raises: NotFound."""
    seen = known.boards.get(board)
    if seen is None:
        offered = ", ".join(sorted(known.boards)) or "none"
        message = f'no board "{board}" was seen on this machine (seen: {offered})'
        raise errors.NotFound(message, reason="BoardUnknown", hint="`fairlead lease baseline list` shows them")
    return {**allowed, board: dataclasses.replace(seen, by=by, at=at)}


def forget(allowed: Mapping[str, Baseline], board: str) -> dict[str, Baseline]:
    """Return the approved baselines without one. Raises: NotFound."""
    if board not in allowed:
        raise errors.NotFound(f'board "{board}" has no approved baseline', reason="BoardUnknown")
    return {name: one for name, one in allowed.items() if name != board}


def _with(values: tuple[str, ...], value: str) -> tuple[str, ...]:
    return values if not value or value in values else (*values, value)
