"""Declares one GPU's row of the node's ledger, and what is seen of the GPU. Pure.

A row is what the ledger keeps of one physical GPU. A claim is one device of it that a container or a ResourceClaim has:
the whole GPU, a replica, or a MIG device. An unshared GPU has the claims of one Allocate or of one ResourceClaim; a
shared one those of several, as the operator chose, and comes back when the last of them ended.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


class State(enum.Enum):
    """Where a GPU is between two tenants."""

    UNKNOWN = "Unknown"
    """Not looked at since the boot, or since the ledger began."""
    DIRTY = "Dirty"
    """No container has it, and it may hold what the last tenant left."""
    SCRUBBING = "Scrubbing"
    VERIFYING = "Verifying"
    FREE = "Free"
    """Verified in this boot, and not given away since."""
    HELD = "Held"
    RELEASING = "Releasing"
    """Its pod is gone; its CDI entry too. A process may still have it open."""
    QUARANTINED = "Quarantined"
    """Withheld until a person acts."""
    MAINTENANCE = "Maintenance"
    GONE = "Gone"
    """Off the bus."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One device of a GPU that a container has, or had."""

    device: str
    """As the kubelet knows it: a device plugin's id, or the name of a DRA driver's device, `name/share` of a share."""
    resource: str = ""
    """Of the device plugin, or name of the DRA driver."""
    is_shared: bool = False
    """Whether other containers may have other devices of the GPU meanwhile: it is a replica or a MIG device."""
    namespace: str = ""
    """Of the pod, once the kubelet's list has named it."""
    pod: str = ""
    uid: str = ""
    """Of the pod, where the store knew it then."""
    container: str = ""
    at: float = 0.0
    """When it was given away, in seconds since 1970."""
    holder: str = ""
    """UID of the ResourceClaim that it was prepared for; empty: Allocate gave it to a container."""

    @property
    def is_seen(self) -> bool:
        """Whether its pod is known: the kubelet's list has named it, or its ResourceClaim did."""
        return bool(self.pod)

    @property
    def giving(self) -> tuple[str, str]:
        """What it was given by, equal for all GPUs that were given together: a ResourceClaim, or one device."""
        return ("", self.holder) if self.holder else (self.resource, self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One GPU. Immutable: a transition makes another one."""

    key: str
    """Its UUID, stable across reboots and slots; of AMD's and Intel's GPUs the PCI address, which is of a slot."""
    state: State = State.UNKNOWN
    epoch: int = 0
    """Grows with every change of who may touch the GPU, and never falls."""
    boot_id: str = ""
    since: float = 0.0
    """When it came into this state, in seconds since 1970."""
    claims: tuple[Claim, ...] = ()
    """Who has it; while it is released, who had it."""
    lease: int = 0
    """Epoch in which the present possession began, or the last one: with the key it names a GPULease."""
    attempts: int = 0
    """Failed attempts to clean and verify it since it was last free."""
    verdict: str = ""
    """Id of the report by which it was last found clean."""
    verdict_epoch: int = 0
    reason: str = ""
    """Why it is withheld; empty: it is not."""
    message: str = ""
    is_condemned: bool = False
    """Whether it goes into quarantine as soon as no container has it."""

    @property
    def is_shared(self) -> bool:
        """Whether every device of it that is given away may be joined by others."""
        return bool(self.claims) and all(claim.is_shared for claim in self.claims)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen of a GPU when an event was reported."""

    at: float = 0.0
    boot_id: str = ""
    epoch: int | None = None
    """The row's epoch when it was seen; None: the event is about no earlier moment."""
    is_listed: bool = False
    """Whether a kubelet's list names a container that has it."""
    openers: tuple[str, ...] = ()
    """Processes that have its device nodes open, or may have, or of ended pods that could open them, in words."""
    is_orphan: bool = False
    """Whether a kubelet has had its time to name the pod of an Allocate, or asks for the same device again."""
    claims: tuple[Claim, ...] = ()
    verdict: str = ""
    reason: str = ""
    message: str = ""
    by: str = ""
    """The person who asks for it; empty: no person did."""


def given_together(claims: Iterable[Claim], rows: Mapping[str, Row]) -> tuple[str, ...]:
    """Return the keys of the GPUs that were given away together with any of some claims, in the order of the rows.

    A slot of several GPUs is one device of all of them, and a ResourceClaim has all of its devices at once: such GPUs
    are looked at together, and joined by the NVLink partition of just them.
    """
    wanted = {one.giving for one in claims}
    return tuple(row.key for row in rows.values() if any(one.giving in wanted for one in row.claims))
