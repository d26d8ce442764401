"""Has claims that wait for their first pod bound before the pod is, and says what claims keep pods waiting.

The chosen node is written on such a claim, and room is held there. A provisioner makes the volume and the claim's watch
says so: the pod is judged again, by where its volumes are, and bound. A provisioner that fails takes the node off the
claim, and another may be chosen.
Source: kubernetes pkg/scheduler/framework/plugins/volumebinding (BindPodVolumes, its ten minutes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fairlead import errors, telemetry
from fairlead.plan.schedule import rules
from fairlead.plan.schedule.cache import Cache
from fairlead.plan.schedule.reference import PodInfo
from fairlead.plan.schedule.volume import claims, wanted
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core

BIND_S: Final = 600.0
"""How long room is held at a time while volumes are made."""
MANAGER: Final = "fairlead-scheduler"
_WITH_OTHERS: Final = "a claim that waits for its first pod, in a pod of a group"


def refusal(cache: Cache, pod: core.Pod, *, is_grouped: bool) -> tuple[str, str] | None:
    """Return why a pod's claims keep it waiting whatever nodes there are, reason and words; None: they do not."""
    found = cache.claims.look_up(pod)
    if not isinstance(found, claims.Refusal):
        if not is_grouped or not wanted.unbound(found):
            return None
        found = claims.Refusal(_WITH_OTHERS, is_unknown=True)
    if found.is_unknown:
        return "UnknownRule", f"asks for {found.why}, which this scheduler does not know: {rules.NEXT_STEP}"
    return "Unschedulable", f"0/{len(cache.views)} nodes are available: {found.why}."


def unbound(cache: Cache, need: PodInfo, pod: core.Pod, node: str) -> tuple[core.PersistentVolumeClaim, ...] | None:
    """Return the claims on which the node is to be written; None: every volume of the pod is there."""
    waits = wanted.unbound(need.volumes)
    if not waits:
        return None
    found = (cache.claims.claim(pod.metadata.namespace, one.claim) for one in waits if one.node != node)
    return tuple(one for one in found if one is not None)


def words(need: PodInfo, node: str) -> str:
    """Return what is said of a pod while its volumes are made."""
    names = ", ".join(one.claim for one in wanted.unbound(need.volumes))
    return f"room is held on {node} until the volumes of its claims are made there: {names}"


async def choose(store: Store, cache: Cache, waits: Iterable[core.PersistentVolumeClaim], node: str) -> None:
    """Write the node on claims; one that changed meanwhile is seen when its watch says so.

    Raises: Unavailable: the store does not answer.
    """
    for one in waits:
        # Believed at once, so that no other pod of the same claim chooses another node meanwhile.
        cache.claims.note(claims.chosen(one, node))
        try:
            await store.apply(claims.on_node(one, node), manager=MANAGER)
        except errors.FairleadError as error:
            cache.claims.note(one)
            if isinstance(error, errors.Unavailable):
                raise
            name = one.metadata.name
            telemetry.log.warning("node not written on claim", claim=name, reason=error.reason, error=error.message)
