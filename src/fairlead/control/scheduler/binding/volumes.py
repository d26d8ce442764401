"""Has the volumes of WaitForFirstConsumer claims bound before their pod.

A volume that exists is given to such a claim (`spec.claimRef`); else the chosen node is written on the claim and a
provisioner makes one. Meanwhile room for the pod is held on that node. The cluster's volume controller binds the two
and the claim's watch says so: the pod is judged again, by where its volumes are, and bound. A provisioner that fails
takes the node off the claim, and another may be chosen.
Source: kubernetes pkg/scheduler/framework/plugins/volumebinding (BindPodVolumes, its ten minutes; AssumePodVolumes).
"""

from __future__ import annotations

from typing import Final

from fairlead import errors, telemetry
from fairlead.plan.schedule import constraint
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.constraint import Reservation
from fairlead.plan.schedule.volume import claims, wanted
from fairlead.plan.schedule.volume.volumes import Ask, Choice, Volumes
from fairlead.store.port import PatchingStore

BIND_S: Final = 600.0
"""How long room is held at a time while volumes are made."""
MANAGER: Final = "fairlead-scheduler"
REASON: Final = "WaitsForVolumes"


def words(ask: constraint.Ask) -> str:
    """Return what a pod waits for until it is bound; "": nothing."""
    names = ", ".join(one.claim for one in wanted.unbound(ask.volumes)) if isinstance(ask, Ask) else ""
    return f"its claims have their volumes there: {names}" if names else ""


async def bind(store: PatchingStore, cache: Cache, reserved: Reservation) -> None:
    """Give claims their volumes, or write the node on them; one that changed since is left: its pod is judged again.

    Raises: Unavailable: the store does not answer.
    """
    known = cache.constraints[reserved.constraint]
    assert isinstance(known, Volumes)  # noqa: S101 whose reservation it is
    for one in reserved.writes:
        assert isinstance(one, Choice)  # noqa: S101 what `Volumes.reserve` writes
        before: claims.Object = one.claim if one.volume is None else one.volume
        after = claims.chosen(one.claim, reserved.node) if one.volume is None else claims.given(one.volume, one.claim)
        if not known.is_current(before):
            continue
        # Believed at once, so that no other pod chooses another node, or the same volume, meanwhile.
        known.note(after)
        try:
            if one.volume is None:
                await store.apply(claims.on_node(one.claim, reserved.node), manager=MANAGER)
            else:
                await store.apply(claims.gift(one.volume, one.claim), manager=MANAGER)
        except errors.FairleadError as error:
            if known.is_current(after):
                known.note(before)
            if isinstance(error, errors.Unavailable):
                raise
            name = one.claim.metadata.name
            telemetry.log.warning("volume not chosen", claim=name, reason=error.reason, error=error.message)
