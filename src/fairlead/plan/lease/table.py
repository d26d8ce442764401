"""Declares the states of a GPU between tenants, and every transition there is, as data. Pure.

Whatever is not a row of `TABLE` is refused. Two absences carry the promise: nothing leads into FREE but VERIFYING with
a verdict of the row's present epoch, and nothing leads out of HELD but RELEASING. A row names the guards that must hold
(`GUARDS`, functions of what was seen) and whether the epoch grows: it does wherever a report of earlier facts must not
count any more. The model in `tests/leaseworld.py` (run by `test_lease_model.py`) tries this table and this code with
two tenants, a kubelet, an engine and a verifier that crash, repeat and come late; six variants that drop one rule each
are found violated.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.plan.lease.row import Facts, Row, State


class Event(enum.Enum):
    """What happened to a GPU."""

    IDENTIFIED = "identified"
    """No container has it, and it is known which GPU it is."""
    ADOPTED = "adopted"
    """A container had it before there was a row of it."""
    SCRUB_BEGUN = "scrub-begun"
    SCRUBBED = "scrubbed"
    SCRUB_FAILED = "scrub-failed"
    POSTPONED = "postponed"
    """It must wait for a person or for the GPU to be well; no attempt counts."""
    PASSED = "passed"
    FAILED = "failed"
    """A check found something that only a person may judge."""
    TIMED_OUT = "timed-out"
    GAVE_UP = "gave-up"
    """A verifier's check failed, or so did as many attempts as are made."""
    EXPIRED = "expired"
    """Its verdict is too old to hand it out."""
    DOUBTED = "doubted"
    """A container or process has it that the ledger does not know."""
    ALLOCATED = "allocated"
    JOINED = "joined"
    """One more device of a GPU that is shared was given away."""
    SEEN = "seen"
    """The kubelet's list says whose a device is."""
    LEFT = "left"
    """One of several devices of a shared GPU came back."""
    RELEASED = "released"
    CLOSED = "closed"
    """No process has it open any more."""
    STUCK = "stuck"
    CONDEMNED = "condemned"
    """Quarantine was asked for while it could not begin at once."""
    QUARANTINED = "quarantined"
    PARDONED = "pardoned"
    DRAINED = "drained"
    RESUMED = "resumed"
    LOST = "lost"
    FOUND = "found"
    REBOOTED = "rebooted"
    RESTARTED = "restarted"
    """The agent began again; whatever it was doing to the GPU is void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of the table."""

    target: State
    guards: tuple[str, ...] = ()
    """Keys of `GUARDS`; all must hold."""
    bumps: bool = False
    """Whether the epoch grows, so that what was seen before counts no more."""


Guard = Callable[[Row, Facts], bool]

GUARDS: Final[Mapping[str, Guard]] = {
    "current": lambda row, facts: facts.epoch == row.epoch,
    "this boot": lambda row, facts: bool(facts.boot_id) and facts.boot_id == row.boot_id,
    "no pod": lambda _, facts: not facts.is_listed,
    "no process": lambda _, facts: not facts.openers,
    "a holder": lambda _, facts: facts.is_listed or bool(facts.openers),
    "a person": lambda _, facts: bool(facts.by),
    "wanted": lambda row, _: not row.is_condemned,
    "condemned": lambda row, _: row.is_condemned,
    "shared": lambda row, facts: (
        row.is_shared
        and all(claim.is_shared for claim in facts.claims)
        and not {claim.device for claim in facts.claims} & {claim.device for claim in row.claims}
    ),
    "a named pod": lambda row, facts: facts.is_orphan or all(claim.is_seen for claim in row.claims),
    "a new name": lambda row, facts: bool(
        {claim.device for claim in facts.claims} & {claim.device for claim in row.claims if not claim.is_seen}
    ),
    "others stay": lambda row, facts: {claim.device for claim in facts.claims} < {claim.device for claim in row.claims},
}
"""What a rule may ask for, by the words that a refusal shows."""

_UNUSED: Final = (State.UNKNOWN, State.DIRTY, State.SCRUBBING, State.VERIFYING, State.FREE)

TABLE: Final[Mapping[tuple[State, Event], Rule]] = {
    (State.UNKNOWN, Event.IDENTIFIED): Rule(target=State.DIRTY, guards=("current", "no pod", "no process"), bumps=True),
    (State.UNKNOWN, Event.ADOPTED): Rule(target=State.HELD, guards=("current", "a holder"), bumps=True),
    (State.DIRTY, Event.SCRUB_BEGUN): Rule(
        target=State.SCRUBBING, guards=("current", "no pod", "no process", "wanted"), bumps=True
    ),
    (State.DIRTY, Event.CONDEMNED): Rule(target=State.QUARANTINED, guards=("condemned",), bumps=True),
    (State.SCRUBBING, Event.SCRUBBED): Rule(target=State.VERIFYING, guards=("current", "no process")),
    (State.SCRUBBING, Event.SCRUB_FAILED): Rule(target=State.DIRTY, guards=("current",), bumps=True),
    (State.SCRUBBING, Event.POSTPONED): Rule(target=State.DIRTY, guards=("current",), bumps=True),
    (State.SCRUBBING, Event.GAVE_UP): Rule(target=State.QUARANTINED, guards=("current",), bumps=True),
    (State.VERIFYING, Event.PASSED): Rule(target=State.FREE, guards=("current", "this boot", "no process")),
    (State.VERIFYING, Event.FAILED): Rule(target=State.QUARANTINED, guards=("current",), bumps=True),
    (State.VERIFYING, Event.TIMED_OUT): Rule(target=State.DIRTY, guards=("current",), bumps=True),
    (State.VERIFYING, Event.GAVE_UP): Rule(target=State.QUARANTINED, guards=("current",), bumps=True),
    (State.FREE, Event.ALLOCATED): Rule(target=State.HELD, guards=("this boot",), bumps=True),
    (State.FREE, Event.EXPIRED): Rule(target=State.DIRTY, bumps=True),
    (State.FREE, Event.DOUBTED): Rule(target=State.UNKNOWN, guards=("current", "a holder"), bumps=True),
    (State.FREE, Event.DRAINED): Rule(target=State.MAINTENANCE, guards=("a person",), bumps=True),
    (State.HELD, Event.JOINED): Rule(target=State.HELD, guards=("shared",), bumps=True),
    (State.HELD, Event.SEEN): Rule(target=State.HELD, guards=("current", "a new name"), bumps=True),
    (State.HELD, Event.LEFT): Rule(target=State.HELD, guards=("current", "no pod", "others stay"), bumps=True),
    (State.HELD, Event.RELEASED): Rule(target=State.RELEASING, guards=("current", "no pod", "a named pod"), bumps=True),
    (State.HELD, Event.QUARANTINED): Rule(target=State.HELD, guards=("a person",)),
    (State.HELD, Event.REBOOTED): Rule(target=State.HELD),
    (State.RELEASING, Event.CLOSED): Rule(target=State.DIRTY, guards=("current", "no pod", "no process"), bumps=True),
    (State.RELEASING, Event.STUCK): Rule(target=State.QUARANTINED, guards=("current",), bumps=True),
    (State.RELEASING, Event.QUARANTINED): Rule(target=State.RELEASING, guards=("a person",)),
    (State.RELEASING, Event.REBOOTED): Rule(target=State.UNKNOWN, bumps=True),
    (State.QUARANTINED, Event.PARDONED): Rule(target=State.DIRTY, guards=("a person",), bumps=True),
    (State.QUARANTINED, Event.REBOOTED): Rule(target=State.QUARANTINED),
    (State.MAINTENANCE, Event.RESUMED): Rule(target=State.DIRTY, guards=("a person",), bumps=True),
    (State.MAINTENANCE, Event.QUARANTINED): Rule(target=State.QUARANTINED, guards=("a person",), bumps=True),
    (State.MAINTENANCE, Event.REBOOTED): Rule(target=State.MAINTENANCE),
    (State.GONE, Event.FOUND): Rule(target=State.UNKNOWN, bumps=True),
    (State.GONE, Event.QUARANTINED): Rule(target=State.QUARANTINED, guards=("a person",), bumps=True),
    (State.GONE, Event.REBOOTED): Rule(target=State.GONE),
    **{
        (state, Event.QUARANTINED): Rule(target=State.QUARANTINED, guards=("a person",), bumps=True)
        for state in _UNUSED
    },
    **{(state, Event.LOST): Rule(target=State.GONE, bumps=True) for state in _UNUSED},
    **{(state, Event.REBOOTED): Rule(target=State.UNKNOWN, bumps=True) for state in _UNUSED},
    **{(state, Event.RESTARTED): Rule(target=State.DIRTY, bumps=True) for state in (State.SCRUBBING, State.VERIFYING)},
}
"""Every transition there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A table with its guards; only proofs use others than the shipped ones."""

    table: Mapping[tuple[State, Event], Rule]
    guards: Mapping[str, Guard]
    published: frozenset[State]
    """States in which the GPU's CDI entry is on disk."""


SHIPPED: Final = Rules(table=TABLE, guards=GUARDS, published=frozenset({State.HELD}))
