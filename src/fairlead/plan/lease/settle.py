"""Decides what follows for a GPU from what was seen of it: adopted, named, released, closed, cleaned. Pure.

`plan_steps` returns transitions that one observation proves, as far as they lead. What the observation does not prove
is left for the next look: a release withdraws the CDI entry first, and only a look after that may find the GPU closed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fairlead.plan.lease import change, check
from fairlead.plan.lease.change import Change
from fairlead.plan.lease.row import Claim, Facts, Row, State
from fairlead.plan.lease.table import Event

ORPHAN_S: Final = 120.0
"""If the kubelet's list names no pod for this long after an Allocate, its answer counts as lost."""
STUCK_S: Final = 900.0
"""A released GPU that a process has not let go for this long is quarantined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was seen of one GPU, after the row had the epoch it has."""

    claims: tuple[Claim, ...] = ()
    """Its devices in the kubelet's list, with their pods."""
    openers: tuple[str, ...] = ()
    """Processes that have it open, or of ended pods that could open it, in words."""
    doubts: tuple[str, ...] = ()
    """Processes with files that may be it: no release goes past them, and none of them is a reason for quarantine."""
    neighbours: tuple[str, ...] = ()
    """Programs of no pod that the driver lists on it: no tenant gets the GPU beside them, which may take hours."""
    asked: frozenset[str] = frozenset()
    """Devices that the kubelet asks for at this moment: it has forgotten who had them."""
    is_due: bool = False
    """Whether it must be reset before a tenant gets it, free or not."""
    living: frozenset[str] = frozenset()
    """Devices whose pod the store still knows as alive."""

    @property
    def processes(self) -> tuple[str, ...]:
        """Return what a release must wait for."""
        return self.openers + self.doubts

    @property
    def users(self) -> tuple[str, ...]:
        """Return what the next tenant must wait for."""
        return self.processes + self.neighbours


def plan_steps(
    row: Row,
    seen: Seen,
    *,
    at: float,
    boot_id: str,
    finding: check.Finding = check.PASSED,
    is_instant: bool = True,
) -> tuple[Change, ...]:
    """Return what is proved by one look at a GPU.

    Args: finding: what the checks say of its newest reading. A GPU that must wait for it stays dirty.
          is_instant: whether that is all there is to verify; else a verifier takes over where cleaning begins.
    """
    facts = Facts(at=at, boot_id=boot_id, is_listed=bool(seen.claims), openers=seen.users)
    found: list[Change] = []

    def take(event: Event, **more: object) -> bool:
        now = found[-1].after if found else row
        told = dataclasses.replace(facts, epoch=now.epoch, **more)  # type: ignore[arg-type]  # fields of Facts
        if change.find_refusal(now, event, told):
            return False
        found.append(change.transition(now, event, told))
        return True

    if row.state is State.HELD:
        _of_held(row, seen, at, take)
        return tuple(found)
    if row.state is State.FREE:
        if not take(Event.DOUBTED) and seen.is_due:
            take(Event.EXPIRED)
        return tuple(found)
    if row.state is State.UNKNOWN and not take(Event.IDENTIFIED):
        if seen.claims:
            take(Event.ADOPTED, claims=seen.claims)
        return tuple(found)
    if row.state is State.RELEASING and not take(Event.CLOSED):
        if seen.openers and at - row.since > STUCK_S:
            take(Event.STUCK, reason="DeviceStillOpen", message=f"not let go by {', '.join(seen.openers)}")
        return tuple(found)
    _clean(finding, take, is_instant=is_instant)
    return tuple(found)


def _clean(finding: check.Finding, take: Callable[..., bool], *, is_instant: bool) -> None:
    """Clean and verify a GPU that is dirty, as far as the checks let it."""
    if take(Event.CONDEMNED) or finding.verdict is check.Verdict.WAIT or not take(Event.SCRUB_BEGUN):
        return
    if not is_instant:
        return
    take(Event.SCRUBBED)
    if finding.verdict is check.Verdict.GOOD:
        take(Event.PASSED, verdict="quick")
    else:
        take(Event.FAILED, reason=finding.reason, message=finding.message)


def _of_held(row: Row, seen: Seen, at: float, take: Callable[..., bool]) -> None:
    named = {claim.device: claim for claim in seen.claims}
    found = ((claim, named[claim.device]) for claim in row.claims if claim.device in named)
    # A ResourceClaim that is reserved for no pod but a PodGroup names none, however often it is looked at.
    fresh = tuple(seen_now for claim, seen_now in found if seen_now.is_seen and not claim.is_seen)
    if fresh:
        take(Event.SEEN, claims=fresh)
    gone = tuple(
        claim
        for claim in row.claims
        if claim.device not in named
        and (claim.device in seen.asked or claim.device not in seen.living)
        and (claim.device in seen.asked or claim.is_seen or claim.holder or at - claim.at > ORPHAN_S)
    )
    if not seen.claims and len(gone) == len(row.claims):
        take(Event.RELEASED, is_orphan=True)
    elif gone and len(gone) < len(row.claims):
        take(Event.LEFT, claims=gone, is_listed=False)
