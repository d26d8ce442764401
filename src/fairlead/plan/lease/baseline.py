"""Declares which firmware is allowed on which kind of board, and learns it from boards that are there. Pure.

What is learned allows nothing: persons approve it. Where two are asked for, the first one proposes what was seen then,
and another one approves exactly that: what was seen since is a new proposal. What was in force before stays so until
then. A board is known by its PCI device, subsystem and part number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model.evidence import Evidence

TWO: Final = 2


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
    """Who approved it, or proposed it; empty: it is not approved."""
    at: float = 0.0
    second_by: str = ""
    """Who approved it as well; empty: one person alone did."""
    second_at: float = 0.0

    @property
    def approvers(self) -> tuple[str, ...]:
        """Who approved it, in their order; one person is one."""
        return tuple(dict.fromkeys(filter(None, (self.by, self.second_by))))


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownBoard:
    """One board, as it was first seen under its UUID."""

    serial: str = ""
    board: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What was seen: kinds of boards by name, single boards by UUID."""

    boards: Mapping[str, Baseline] = dataclasses.field(default_factory=dict)
    cards: Mapping[str, KnownBoard] = dataclasses.field(default_factory=dict)
    approvals: int = TWO
    """How many persons must approve a baseline: the setting of the agent that wrote this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What persons decided, by board."""

    approved: Mapping[str, Baseline] = dataclasses.field(default_factory=dict)
    """In force, where enough persons approved it."""
    proposed: Mapping[str, Baseline] = dataclasses.field(default_factory=dict)
    """Approved by one person, of two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How one kind of board stands on a machine."""

    board: str
    allowed: Baseline | None
    """What is in force."""
    proposed: Baseline | None
    """What one person approved and another one must."""
    unapproved: tuple[str, ...]
    """Versions that were seen and are in neither."""
    approvals: int

    @property
    def baseline(self) -> Baseline:
        """What is shown: what is in force, else what is proposed, else nothing."""
        return self.allowed or self.proposed or Baseline(board=self.board)

    @property
    def approvers(self) -> tuple[str, ...]:
        """Who approved what is proposed, or else what is in force."""
        return (self.proposed or self.baseline).approvers


def in_force(decided: Decided, board: str, approvals: int) -> Baseline | None:
    """Return what is allowed on a kind of board; None: not enough persons approved anything."""
    found = decided.approved.get(board)
    return found if found is not None and len(found.approvers) >= approvals else None


def waiting(decided: Decided, board: str, approvals: int) -> Baseline | None:
    """Return what one person approved and another one must; None: nothing."""
    if proposed := decided.proposed.get(board):
        return proposed
    return decided.approved.get(board) if in_force(decided, board, approvals) is None else None


def standings(known: Learned, decided: Decided) -> tuple[Standing, ...]:
    """Return how every kind of board stands that was seen or decided on, in order."""
    names = known.boards.keys() | decided.approved.keys() | decided.proposed.keys()
    return tuple(standing(name, known, decided) for name in sorted(names))


def standing(board: str, known: Learned, decided: Decided) -> Standing:
    """Return how one kind of board stands."""
    seen = known.boards.get(board, Baseline(board=board))
    allowed = in_force(decided, board, known.approvals)
    proposed = waiting(decided, board, known.approvals)
    shown = allowed or proposed or Baseline(board=board)
    unapproved = (
        *(one for one in seen.vbios if one not in shown.vbios),
        *(one for one in seen.inforom if one not in shown.inforom),
    )
    return Standing(board=board, allowed=allowed, proposed=proposed, unapproved=unapproved, approvals=known.approvals)


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
        cards = {**cards, str(seen.gpu): KnownBoard(serial=seen.serial, board=seen.board)}
    return dataclasses.replace(known, boards={**known.boards, seen.board: board}, cards=cards)


def approve(decided: Decided, known: Learned, board: str, *, by: str, at: float) -> Decided:
    """Return what is decided once a person allowed all that was seen on one kind of board.

    Raises: NotFound (`BoardUnknown`); Denied (`SecondApprovalMissing`): the same person approved it before.
    """
    seen = known.boards.get(board)
    if seen is None:
        offered = ", ".join(sorted(known.boards)) or "none"
        message = f'no board "{errors.readable(board[:80])}" was seen on this machine (seen: {offered})'
        raise errors.NotFound(message, reason="BoardUnknown", hint="`fairlead lease baseline list` shows them")
    first = waiting(decided, board, known.approvals)
    if first is None or not _is_same(first, seen):
        made = dataclasses.replace(seen, by=by, at=at)
    elif by in first.approvers:
        message = f'"{by}" approved the baseline of board "{board}" already, and two persons must (lease.approvals)'
        hint = (
            "another person runs `fairlead lease baseline approve`; on a machine of one person set lease.approvals to 1"
        )
        raise errors.Denied(message, reason="SecondApprovalMissing", hint=hint)
    else:
        made = dataclasses.replace(first, second_by=by, second_at=at)
    proposed = {name: one for name, one in decided.proposed.items() if name != board}
    if len(made.approvers) < known.approvals:
        return Decided(approved=decided.approved, proposed={**proposed, board: made})
    return Decided(approved={**decided.approved, board: made}, proposed=proposed)


def forget(decided: Decided, board: str) -> Decided:
    """Return what is decided without one board. Raises: NotFound."""
    if board not in {**decided.approved, **decided.proposed}:
        message = f'board "{errors.readable(board[:80])}" has no approved baseline'
        raise errors.NotFound(message, reason="BoardUnknown", hint="`fairlead lease baseline list` shows them")
    approved = {name: one for name, one in decided.approved.items() if name != board}
    return Decided(approved=approved, proposed={name: one for name, one in decided.proposed.items() if name != board})


def _is_same(one: Baseline, other: Baseline) -> bool:
    def allowed(of: Baseline) -> tuple[object, ...]:
        return of.vbios, of.inforom, of.link_width, of.ecc

    return allowed(one) == allowed(other)


def _with(values: tuple[str, ...], value: str) -> tuple[str, ...]:
    return values if not value or value in values else (*values, value)
