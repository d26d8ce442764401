"""Describes the ledger's rows: who has which GPU, and what keeps it back; without the web framework."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import msgspec

from fairlead.plan.lease import baseline
from fairlead.plan.lease.row import Row


class LeaseView(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU of the ledger."""

    gpu: Annotated[str, msgspec.Meta(description="its UUID; of AMD's and Intel's GPUs the PCI address")]
    state: Annotated[str, msgspec.Meta(description="between two tenants: Free, Held, Releasing, Quarantined, …")]
    epoch: Annotated[int, msgspec.Meta(description="grows with every change of who may touch the GPU")]
    lease: Annotated[int, msgspec.Meta(description="epoch in which the present possession began, or the last one")]
    since: Annotated[str, msgspec.Meta(description="when it came into this state; empty: not known")]
    holders: Annotated[
        tuple[str, ...],
        msgspec.Meta(description="`namespace/pod/container` of those that have it, or had it; `?`: not named yet"),
    ]
    verified_by: Annotated[str, msgspec.Meta(description="id of the report by which it was last found clean")]
    reason: str
    message: str
    condemned: Annotated[bool, msgspec.Meta(description="it goes into quarantine when it comes back")]


class LeaseList(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of the ledger."""

    items: tuple[LeaseView, ...]


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU to quarantine, or to release."""

    gpu: Annotated[
        str, msgspec.Meta(description="its UUID, a part that only one has, or its index while the agent runs")
    ]
    why: Annotated[str, msgspec.Meta(description="why, one plain line, at most 500 characters", max_length=500)] = ""


class BaselineView(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of board: what was seen on it here, and what is approved."""

    board: Annotated[str, msgspec.Meta(description="PCI device, subsystem and part number")]
    approved: Annotated[bool, msgspec.Meta(description="in force: GPUs of this board may be given away")]
    by: Annotated[str, msgspec.Meta(description="who approved it, or the first of two; empty: nobody")]
    approvers: Annotated[tuple[str, ...], msgspec.Meta(description="who approved it, or what is to be")]
    waits: Annotated[bool, msgspec.Meta(description="one person approved what was seen, and a second one must")]
    vbios: tuple[str, ...]
    inforom: tuple[str, ...]
    link_width: Annotated[int, msgspec.Meta(description="fewest PCIe lanes")]
    seen_only: Annotated[tuple[str, ...], msgspec.Meta(description="versions that were seen and are not approved")]


class BaselineList(msgspec.Struct, frozen=True, kw_only=True):
    """Kinds of boards."""

    items: tuple[BaselineView, ...]


class BaselineRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A kind of board whose firmware a person decides on."""

    board: Annotated[str, msgspec.Meta(description="as the list has it", max_length=200)]


def baseline_views(learned: baseline.Learned, decided: baseline.Decided) -> tuple[BaselineView, ...]:
    """Return every kind of board that was seen or decided on, in order."""
    return tuple(map(baseline_view, baseline.standings(learned, decided)))


def baseline_view(found: baseline.Standing) -> BaselineView:
    """Return one kind of board as it is shown."""
    shown = found.baseline
    return BaselineView(
        board=found.board,
        approved=found.allowed is not None,
        by=shown.by,
        approvers=found.approvers,
        waits=found.proposed is not None,
        vbios=shown.vbios,
        inforom=shown.inforom,
        link_width=shown.link_width,
        seen_only=found.unapproved,
    )


def view_of(row: Row) -> LeaseView:
    """Return a row as it is shown."""
    return LeaseView(
        gpu=row.key,
        state=row.state.value,
        epoch=row.epoch,
        lease=row.lease,
        since=dt.datetime.fromtimestamp(row.since, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if row.since else "",
        holders=holders(row),
        verified_by=row.verdict,
        reason=row.reason,
        message=row.message,
        condemned=row.is_condemned,
    )


def holders(row: Row) -> tuple[str, ...]:
    """Return who has a GPU, each once."""
    names = (
        "/".join(filter(None, (one.namespace, one.pod, one.container))) if one.is_seen else "?" for one in row.claims
    )
    return tuple(dict.fromkeys(names))
