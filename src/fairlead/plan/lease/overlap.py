"""Says which slots cannot be given away because of others that share a GPU with them. Pure.

A GPU of an NVLink board is in a slot of its own and in one of each partition around it. While a slot is held it stays
healthy, since a kubelet rejects a pod whose device is not; every other slot with one of its GPUs is unhealthy. So is a
slot of several while one of its GPUs is not free yet, and while nobody knows which partitions are active.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fairlead.plan.lease.row import Row, State
from fairlead.plan.vfio.slot import Slot

HELD: Final = "SlotOverlapsHeld"
NOT_FREE: Final = "SlotMemberNotFree"
UNKNOWN: Final = "FabricUnknown"


def plan_overlaps(slots: Iterable[Slot], rows: Mapping[str, Row], *, unknown: str = "") -> dict[str, tuple[str, str]]:
    """Return reason and message why a slot must not be given away, by its id.

    Args: unknown: why it is not known which partitions are active; empty: it is.
    """
    known = tuple(slots)
    if not any(len(one.gpus) > 1 for one in known):
        return {}  # each GPU's row says all there is
    found = dict[str, tuple[str, str]]()
    for one in known:
        if (problem := _problem(one, rows, unknown)) is not None:
            found[str(one.id)] = problem
    return found


def _problem(one: Slot, rows: Mapping[str, Row], unknown: str) -> tuple[str, str] | None:
    members = [(gpu, rows.get(str(gpu.key))) for gpu in one.gpus]
    if all(row is not None and _is_by(row, one) for _, row in members):
        return None
    for gpu, row in members:
        if row is not None and row.state is State.HELD:
            who = ", ".join(f"{claim.namespace}/{claim.pod}" for claim in row.claims if claim.pod) or "a pod"
            names = ", ".join(claim.device for claim in row.claims)
            return HELD, f"{who} has {gpu.address}" + (f" by {names}" if names else "")
    if len(one.gpus) < 2:
        return None
    if unknown:
        return UNKNOWN, unknown
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
