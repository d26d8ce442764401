"""Follows one possession of a GPU through the ledger's transitions, and shows it as a GPULease. Pure.

A possession begins with the epoch in which a free GPU was given away and lasts until no process has the GPU open; what
comes after it, until the GPU is found clean or given away again, is still told of it. The same step may be taken twice:
the history on disk and what is reported live overlap when an agent starts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from fairlead.plan.lease.row import Claim, Row, State
from fairlead.plan.lease.table import Event
from fairlead.wire.kubernetes import gpudevice, gpulease, meta
from fairlead.wire.kubernetes.gpulease import GPULease
from fairlead.wire.text import timestamp

_BEGINS: Final = frozenset({Event.ALLOCATED.value, Event.ADOPTED.value})
_BY_STATE: Final = {
    State.HELD: gpulease.HELD,
    State.RELEASING: gpulease.RELEASING,
    State.FREE: gpulease.VERIFIED,
    State.QUARANTINED: gpulease.QUARANTINED,
}
"""What a row's state says of its last possession; every other one says that the possession is over."""
_HAD: Final = frozenset({State.HELD, State.RELEASING})
_UNVERIFIED: Final = frozenset({gpulease.RELEASED, gpulease.QUARANTINED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Possession:
    """One GPU in the hands of one tenant. Times are seconds since 1970; 0: not yet."""

    gpu: str
    """The row's key."""
    epoch: int
    """The row's `lease`."""
    began: float
    is_adopted: bool = False
    verified_by: str = ""
    """Id of the report by which the GPU was found clean before it; empty: by none that is known."""
    claims: tuple[Claim, ...] = ()
    """Every claim that there was, the latest knowledge of each, in the order in which they came."""
    state: str = gpulease.HELD
    """One of `gpulease.STATES`."""
    released: float = 0.0
    ended: float = 0.0
    verified: float = 0.0
    report: str = ""
    reason: str = ""
    message: str = ""

    @property
    def is_over(self) -> bool:
        """Whether its record is complete."""
        return self.state == gpulease.VERIFIED


def advance(found: Possession | None, row: Row, *, event: str, at: float) -> Possession | None:
    """Return what is known of a row's last possession after a step of it.

    Args:    found: what was known of any possession of that GPU.   row: after the step.
             event: the transition; empty: there is none, the row is as it is.   at: when.
    Returns: None: no container had the GPU yet, or nothing says since when. A step of an earlier possession than
             the one that is known changes nothing.
    """
    if found is None or found.epoch < row.lease:
        found = _begin(row, event, at)
    if found is None or found.is_over or found.epoch > row.lease:
        return found
    state = _BY_STATE.get(row.state, found.state if found.state in _UNVERIFIED else gpulease.RELEASED)
    is_ended = state in gpulease.ENDED
    is_verified = state == gpulease.VERIFIED
    return dataclasses.replace(
        found,
        state=state,
        claims=_merged(found.claims, row.claims),
        released=found.released or (at if is_ended or state == gpulease.RELEASING else 0.0),
        ended=found.ended or (at if is_ended else 0.0),
        verified=at if is_verified else 0.0,
        report=row.verdict if is_verified else "",
        reason=row.reason,
        message=row.message,
    )


def _begin(row: Row, event: str, at: float) -> Possession | None:
    """Return a possession at its start, None where that was not seen and the row does not say when it was."""
    if not row.lease or (event not in _BEGINS and not row.claims):
        return None
    began = at if event in _BEGINS else min(claim.at for claim in row.claims)
    is_adopted = event == Event.ADOPTED.value
    # A row that is free again names the report after the possession, not the one before it.
    before = row.verdict if row.state in _HAD and not is_adopted else ""
    return Possession(gpu=row.key, epoch=row.lease, began=began, is_adopted=is_adopted, verified_by=before)


def _merged(known: tuple[Claim, ...], now: tuple[Claim, ...]) -> tuple[Claim, ...]:
    """Return claims with what is newly known; a device that was given away again is another claim."""
    found = {(claim.device, claim.at): claim for claim in known}
    return tuple({**found, **{(claim.device, claim.at): claim for claim in now}}.values())


def is_shown_by(found: GPULease, possession: Possession) -> bool:
    """Return whether an object is a possession's, and not one's that a ledger before this one counted alike."""
    return (found.spec.epoch, found.spec.held_at) == (possession.epoch, meta.emit_time(possession.began))


def plan_name(device: str, possession: Possession, found: GPULease | None = None) -> str:
    """Return the name of a possession's object: the GPUDevice's and the epoch.

    A ledger that was lost starts its epochs over: where the object of that name (`found`) is another possession's, the
    time when this one began is added.
    """
    name = f"{device}-{possession.epoch}"
    return name if found is None or is_shown_by(found, possession) else f"{name}-{int(possession.began)}"


def show(possession: Possession, *, name: str, device: str, node: str) -> GPULease:
    """Return the object of a possession. Args: name: its own.   device: the GPUDevice's."""
    holders = tuple(
        gpudevice.Holder(
            namespace=claim.namespace,
            pod=claim.pod,
            container=claim.container,
            resource=claim.resource,
            devices=(claim.device,),
        )
        for claim in possession.claims
        if claim.is_seen
    )
    return GPULease(
        metadata=meta.ObjectMeta(name=name),
        spec=gpulease.GPULeaseSpec(
            node_name=node,
            gpu=possession.gpu,
            gpu_device=device,
            epoch=possession.epoch,
            held_at=meta.emit_time(possession.began),
            adopted=possession.is_adopted,
            verified_by=possession.verified_by,
        ),
        status=gpulease.GPULeaseStatus(
            state=possession.state,
            holders=holders,
            held_by=gpudevice.name_pods(holders),
            released_at=meta.emit_known(possession.released),
            ended_at=meta.emit_known(possession.ended),
            verified_at=meta.emit_known(possession.verified),
            report=possession.report,
            reason=possession.reason,
            message=possession.message,
        ),
    )


def with_pods(
    status: gpulease.GPULeaseStatus, before: gpulease.GPULeaseStatus, uids: Callable[[str, str], str]
) -> gpulease.GPULeaseStatus:
    """Return a status whose holders have their pods' uids: as they were first known, else as they are now."""
    known = {(one.namespace, one.pod): one.pod_uid for one in before.holders if one.pod_uid}

    def named(one: gpudevice.Holder) -> gpudevice.Holder:
        uid = known.get((one.namespace, one.pod)) or uids(one.namespace, one.pod)
        return msgspec.structs.replace(one, pod_uid=uid)

    return msgspec.structs.replace(status, holders=tuple(map(named, status.holders)))


def lose(found: GPULease, *, at: float, reason: str, message: str) -> GPULease | None:
    """Return a lease that can no longer be followed as lost; None where it has ended anyway."""
    if found.status.state in gpulease.ENDED:
        return None
    status = msgspec.structs.replace(
        found.status, state=gpulease.LOST, ended_at=meta.emit_known(at), reason=reason, message=message
    )
    return msgspec.structs.replace(found, status=status)


def find_old(leases: Iterable[GPULease], *, before: float) -> tuple[GPULease, ...]:
    """Return the leases that ended before a time."""
    return tuple(
        one
        for one in leases
        if one.status.state in gpulease.ENDED and (timestamp.parse(one.status.ended_at) or before) < before
    )
