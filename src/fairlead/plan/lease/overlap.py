"""Says which slots cannot be given away because of others that share a GPU with them. Pure.

A GPU of an NVLink board is in a slot of its own and in one of each partition around it. While a slot is held it stays
healthy, since a kubelet that begins again rejects a pod whose device is not; every other slot with one of its GPUs is
unhealthy. So is a slot of several while one of its GPUs is not free yet, while nobody knows which partitions are
active, and, held, once the machine with the switches was lost: its pod has no NVLink any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from fairlead.plan.lease.row import Row, State
from fairlead.plan.vfio.slot import Slot

HELD: Final = "SlotOverlapsHeld"
NOT_FREE: Final = "SlotMemberNotFree"
LOST: Final = "FabricLost"


def plan_overlaps(
    slots: Iterable[Slot],
    rows: Mapping[str, Row],
    *,
    unusable: tuple[str, str] | None = None,
    lost: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, tuple[str, str]]:
    """Return reason and message why a slot must not be given away, by its id.

    Args: unusable: reason and message why no slot of several may be given away: it is not known which partitions are
              active, or the Manager is of another version than tenants' driver; None: they may.
          lost: held slots whose NVLink is gone for good, by id, and how it went.
    """
    known = tuple(slots)
    if not any(len(one.gpus) > 1 for one in known):
        return {}  # each GPU's row says all there is
    found = dict[str, tuple[str, str]]()
    for one in known:
        if (problem := _problem(one, rows, unusable, lost)) is not None:
            found[str(one.id)] = problem
    return found


def _problem(
    one: Slot, rows: Mapping[str, Row], unusable: tuple[str, str] | None, lost: Mapping[str, str]
) -> tuple[str, str] | None:
    members = [(gpu, rows.get(str(gpu.key))) for gpu in one.gpus]
    if all(row is not None and _is_by(row, one) for _, row in members):
        return (LOST, lost[one.id]) if one.id in lost else None
    for gpu, row in members:
        if row is not None and row.state is State.HELD:
            who = ", ".join(f"{claim.namespace}/{claim.pod}" for claim in row.claims if claim.pod) or "a pod"
            names = ", ".join(claim.device for claim in row.claims)
            return HELD, f"{who} has {gpu.address}" + (f" by {names}" if names else "")
    if len(one.gpus) < 2:
        return None
    if unusable is not None:
        return unusable
    for gpu, row in members:
        if row is None or row.state is not State.FREE:
            state = row.state.value.lower() if row is not None else "not looked at yet"
            return NOT_FREE, f"{gpu.address} is {state}"
    return None


def _is_by(row: Row, one: Slot) -> bool:
    """Return whether a GPU is held by this slot."""
    return row.state is State.HELD and any(
        (claim.device, claim.resource) == (one.id, one.resource) for claim in row.claims
    )
