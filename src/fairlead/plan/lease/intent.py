"""Decides what a person's request makes of a GPU's row: only ever in the safe direction. Pure.

A GPU may go into quarantine from anywhere, at once or as soon as it comes back. Out of quarantine it comes only as one
that is not clean: nothing a person says makes it free.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fairlead import errors
from fairlead.plan.lease import change
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import Facts, Row, State
from fairlead.plan.lease.table import Event

SHOW: Final = "show"
"""Changes nothing: asks which row is meant."""
QUARANTINE: Final = "quarantine"
RELEASE: Final = "release"
BY_HAND: Final = "ByHand"
"""Reason of a row that a person quarantined."""
_INDEX_DIGITS: Final = 4
_RELEASES: Final = {State.QUARANTINED: Event.PARDONED, State.MAINTENANCE: Event.RESUMED}


def is_index(name: str) -> bool:
    """Return whether a person means a GPU's index, which the driver assigns at each boot, and no part of a UUID."""
    return name.isascii() and name.isdecimal() and len(name) <= _INDEX_DIGITS


def by_index(name: str, indices: Mapping[int, str]) -> str:
    """Return the key of the GPU with this index; a name that is not an index as it is. Raises: NotFound."""
    if not is_index(name):
        return name
    if int(name) in indices:
        return indices[int(name)]
    known = f"0 to {max(indices)}" if indices else "none is known"
    message = f"no GPU here has the index {name} ({known})"
    raise errors.NotFound(message, reason="GPUUnknown", hint="`fairlead leases` lists them by UUID")


def find_row(rows: Mapping[str, Row], name: str) -> Row:
    """Return the row of a GPU by its UUID, or by a part that only one has. Raises: NotFound: none or several have."""
    if name in rows:
        return rows[name]
    if is_index(name):
        message = f"{name} is an index, and the agent that knows which GPU has it does not run"
        raise errors.NotFound(message, reason="GPUUnknown", hint="name it by UUID: `fairlead leases` lists them")
    found = [row for key, row in rows.items() if name and name.lower() in key.lower()]
    if len(found) == 1:
        return found[0]
    message = f'"{name}" is {"a part of several GPUs" if found else "none of the GPUs"} in the ledger'
    raise errors.NotFound(message, reason="GPUUnknown", hint="`fairlead leases` lists them by UUID")


def plan_intent(rows: Mapping[str, Row], verb: str, name: str, facts: Facts) -> tuple[Change, ...]:
    """Return what a request changes; none where the GPU is already so.

    Args:    facts: `by` names the person, `message` says why.
    Raises:  NotFound: no such GPU.   Conflict: the GPU is not withheld, so that there is nothing to release.
             Invalid: an unknown request.
    """
    row = find_row(rows, name)
    if verb == SHOW:
        return ()
    if verb == QUARANTINE:
        if row.state is State.QUARANTINED or row.is_condemned:
            return ()
        return (change.transition(row, Event.QUARANTINED, facts),)
    if verb != RELEASE:
        raise errors.Invalid(f'"{verb}" is not a request (offered: {QUARANTINE}, {RELEASE})', reason="IntentUnknown")
    event = _RELEASES.get(row.state)
    if event is None:
        held = " and comes back by itself when its pod ends" if row.state is State.HELD else ""
        message = f"gpu {row.key} is {row.state.value}{held}: only a GPU that is kept back can be released"
        raise errors.Conflict(message, reason="GPUNotKeptBack", hint="`fairlead leases` shows every GPU's state")
    return (change.transition(row, event, facts),)
