"""Carries out one transition of a GPU's row, and plans what one Allocate changes. Pure.

`transition` is the only place where a row gets another state: by a row of the table whose guards hold, or not at all.
`plan_hold` gives all GPUs of an Allocate or none of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.plan.lease import table
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event, Rules

REFUSED: Final = "LeaseTransitionRefused"
HELD: Final = "GPUHeld"
NOT_READY: Final = "GPUNotVerified"
KEPT_BACK: Final = "GPUKeptBack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One row before and after an event."""

    event: Event
    before: Row
    after: Row
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one Allocate asks of one GPU."""

    key: str
    claims: tuple[Claim, ...]


def find_refusal(row: Row, event: Event, facts: Facts, rules: Rules = table.SHIPPED) -> str:
    """Return why an event cannot happen to a row, "" where it can."""
    rule = rules.table.get((row.state, event))
    if rule is None:
        return f"{row.state.value} has no transition {event.value}"
    missing = [name for name in rule.guards if not rules.guards[name](row, facts)]
    return f"{row.state.value} {event.value} asks for: {', '.join(missing)}" if missing else ""


def transition(row: Row, event: Event, facts: Facts, rules: Rules = table.SHIPPED) -> Change:
    """Return what an event makes of a row. Raises: Conflict (`LeaseTransitionRefused`): the table does not allow it."""
    if why := find_refusal(row, event, facts, rules):
        raise errors.Conflict(
            f"gpu {row.key}, epoch {row.epoch}: {why}", reason=REFUSED, hint="read the ledger again: `fairlead leases`"
        )
    rule = rules.table[row.state, event]
    after = dataclasses.replace(
        _EFFECTS.get(event, _unchanged)(row, facts),
        state=rule.target,
        epoch=row.epoch + rule.bumps,
        since=row.since if rule.target is row.state else facts.at,
    )
    return Change(event=event, before=row, after=after, facts=facts)


def is_published(row: Row, rules: Rules = table.SHIPPED) -> bool:
    """Return whether the GPU's CDI entry may be on disk: only while a container has it."""
    return row.state in rules.published


def plan_hold(
    rows: Mapping[str, Row],
    asks: Iterable[Ask],
    *,
    facts: Facts,
    listed: Collection[str] = (),
    rules: Rules = table.SHIPPED,
) -> tuple[Change, ...]:
    """Return what one Allocate changes: all its GPUs are held afterwards, or none has changed.

    Args:    listed: ids of devices that the kubelet's list, read after the call began, shows in a container. A kubelet
             asks again for what a pod has: for its next container, after a lost answer, or with one device more.
    Raises:  Conflict (`GPUHeld`): another has it.   Unavailable (`GPUNotVerified`): it is not clean yet.
             DeviceFault (`GPUKeptBack`): it waits for a person, or is not there.
    """
    changes: list[Change] = []
    for ask in asks:
        row = rows.get(ask.key, Row(key=ask.key))
        seen = dataclasses.replace(facts, claims=ask.claims, epoch=row.epoch)
        held = {claim.device for claim in row.claims}
        fresh = tuple(claim for claim in ask.claims if claim.device not in held)
        if not find_refusal(row, Event.ALLOCATED, seen, rules):
            changes.append(transition(row, Event.ALLOCATED, seen, rules))
        elif row.state is not State.HELD or any(
            claim.device not in listed for claim in ask.claims if claim.device in held
        ):
            raise refusal(row)
        elif fresh:
            joining = dataclasses.replace(seen, claims=fresh)
            if find_refusal(row, Event.JOINED, joining, rules):
                raise refusal(row)
            changes.append(transition(row, Event.JOINED, joining, rules))
    return tuple(changes)


def plan_adoption(
    rows: Mapping[str, Row],
    asks: Iterable[Ask],
    *,
    facts: Facts,
    listed: Collection[str] = (),
    rules: Rules = table.SHIPPED,
) -> tuple[Change, ...]:
    """Return the changes that adopt devices held before there was a ledger: of all of them, or of none.

    A GPU that was never looked at is held as it is, whatever has it open; any other as by `plan_hold`.
    Raises: as `plan_hold`.
    """
    changes: list[Change] = []
    for ask in asks:
        row = rows.get(ask.key, Row(key=ask.key))
        seen = dataclasses.replace(facts, claims=ask.claims, epoch=row.epoch)
        if not find_refusal(row, Event.ADOPTED, seen, rules):
            changes.append(transition(row, Event.ADOPTED, seen, rules))
        else:
            changes += plan_hold(rows, (ask,), facts=facts, listed=listed, rules=rules)
    return tuple(changes)


def refusal(row: Row) -> errors.FairleadError:
    """Return the error that names what keeps a GPU from being given away."""
    context = {"gpu": row.key, "state": row.state.value}
    if row.state is State.HELD:
        message = f"gpu {row.key} is held (epoch {row.epoch}) and was not given back"
        hint = "the pod must be placed again; `fairlead leases` says who has it"
        return errors.Conflict(message, reason=HELD, hint=hint, **context)
    if row.state in {State.QUARANTINED, State.MAINTENANCE, State.GONE}:
        why = f": {row.message or row.reason}" if row.message or row.reason else ""
        hint = f"`fairlead lease history {row.key}` says why, `fairlead lease release {row.key}` gives it back"
        message = f"gpu {row.key} is {row.state.value}{why}"
        return errors.DeviceFault(message, reason=KEPT_BACK, hint=hint, **context)
    why = f": {row.message or row.reason}" if row.message or row.reason else ""
    message = f"gpu {row.key} is {row.state.value} and not verified since its last tenant{why}"
    return errors.Unavailable(message, reason=NOT_READY, hint="`fairlead leases` shows how far it is", **context)


def restart_events(row: Row, boot_id: str) -> Sequence[Event]:
    """Return what an agent's start means for a row that an earlier one wrote."""
    if row.boot_id != boot_id:
        return (Event.REBOOTED,)
    return (Event.RESTARTED,) if row.state in {State.SCRUBBING, State.VERIFYING} else ()


def _unchanged(row: Row, facts: Facts) -> Row:  # noqa: ARG001  (one signature for every effect)
    return row


def _given(row: Row, facts: Facts) -> Row:
    claims = tuple(dataclasses.replace(claim, at=facts.at) for claim in facts.claims)
    return dataclasses.replace(row, claims=(*row.claims, *claims), reason="", message="")


def _allocated(row: Row, facts: Facts) -> Row:
    return _given(dataclasses.replace(row, claims=(), lease=row.epoch + 1), facts)


def _seen(row: Row, facts: Facts) -> Row:
    named = {claim.device: claim for claim in facts.claims}

    def told(claim: Claim) -> Claim:
        found = named.get(claim.device)
        if found is None:
            return claim
        return dataclasses.replace(
            claim, namespace=found.namespace, pod=found.pod, uid=found.uid, container=found.container
        )

    return dataclasses.replace(row, claims=tuple(map(told, row.claims)))


def _left(row: Row, facts: Facts) -> Row:
    gone = {claim.device for claim in facts.claims}
    return dataclasses.replace(row, claims=tuple(claim for claim in row.claims if claim.device not in gone))


def _kept_back(row: Row, facts: Facts) -> Row:
    return dataclasses.replace(row, claims=(), reason=facts.reason, message=facts.message, is_condemned=False)


def _condemned(row: Row, facts: Facts) -> Row:  # noqa: ARG001
    return dataclasses.replace(row, claims=(), is_condemned=False)


def _quarantined(row: Row, facts: Facts) -> Row:
    if row.state in {State.HELD, State.RELEASING}:
        return dataclasses.replace(row, is_condemned=True, reason=facts.reason, message=facts.message)
    return _kept_back(row, facts)


def _failed(row: Row, facts: Facts) -> Row:
    return dataclasses.replace(row, attempts=row.attempts + 1, reason=facts.reason, message=facts.message)


def _postponed(row: Row, facts: Facts) -> Row:
    return dataclasses.replace(row, reason=facts.reason, message=facts.message)


def _passed(row: Row, facts: Facts) -> Row:
    return dataclasses.replace(
        row, attempts=0, verdict=facts.verdict, verdict_epoch=row.epoch, claims=(), reason="", message=""
    )


def _cleared(row: Row, facts: Facts) -> Row:  # noqa: ARG001
    return dataclasses.replace(row, claims=(), attempts=0, reason="", message="")


def _closed(row: Row, facts: Facts) -> Row:  # noqa: ARG001
    is_condemned = row.is_condemned
    return dataclasses.replace(
        row, claims=(), reason=row.reason if is_condemned else "", message=row.message if is_condemned else ""
    )


def _rebooted(row: Row, facts: Facts) -> Row:
    return dataclasses.replace(row, boot_id=facts.boot_id)


def _located(row: Row, facts: Facts) -> Row:
    return dataclasses.replace(row, boot_id=facts.boot_id or row.boot_id)


_EFFECTS: Final[Mapping[Event, Callable[[Row, Facts], Row]]] = {
    Event.IDENTIFIED: _located,
    Event.ADOPTED: lambda row, facts: _allocated(_located(row, facts), facts),
    Event.ALLOCATED: _allocated,
    Event.JOINED: _given,
    Event.SEEN: _seen,
    Event.LEFT: _left,
    Event.CLOSED: _closed,
    Event.SCRUB_FAILED: _failed,
    Event.TIMED_OUT: _failed,
    Event.POSTPONED: _postponed,
    Event.PASSED: _passed,
    Event.FAILED: _kept_back,
    Event.GAVE_UP: _kept_back,
    Event.STUCK: _kept_back,
    Event.QUARANTINED: _quarantined,
    Event.CONDEMNED: _condemned,
    Event.PARDONED: _cleared,
    Event.RESUMED: _cleared,
    Event.DRAINED: _kept_back,
    Event.REBOOTED: _rebooted,
}
