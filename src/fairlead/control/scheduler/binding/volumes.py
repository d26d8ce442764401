"""Has the volumes of WaitForFirstConsumer claims bound before their pod, and finds claims that keep pods waiting.

A volume that exists is given to such a claim (`spec.claimRef`); else the chosen node is written on the claim and a
provisioner makes one. Meanwhile room for the pod is held on that node. The cluster's volume controller binds the two
and the claim's watch says so: the pod is judged again, by where its volumes are, and bound. A provisioner that fails
takes the node off the claim, and another may be chosen.
Source: kubernetes pkg/scheduler/framework/plugins/volumebinding (BindPodVolumes, its ten minutes; AssumePodVolumes).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fairlead import errors, telemetry
from fairlead.plan.schedule import rules
from fairlead.plan.schedule.cache import Cache
from fairlead.plan.schedule.reference import PodInfo
from fairlead.plan.schedule.volume import claims, wanted
from fairlead.store.port import Store
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.scheduling import storage

BIND_S: Final = 600.0
"""How long room is held at a time while volumes are made."""
MANAGER: Final = "fairlead-scheduler"


def refusal(cache: Cache, pod: core.Pod) -> tuple[str, str] | None:
    """Return why a pod's claims keep it waiting whatever nodes there are, reason and words; None: they do not."""
    if not claims.has_claims(pod):
        return None
    found = cache.claims.look_up(pod)
    if not isinstance(found, claims.Refusal):
        return None
    if found.is_unknown:
        return "UnknownRule", f"asks for {found.why}, which this scheduler does not know: {rules.NEXT_STEP}"
    return "Unschedulable", f"0/{len(cache.views)} nodes are available: {found.why}."


@dataclass(frozen=True, slots=True)
class Choice:
    """A claim, and what it gets on the node that was chosen."""

    claim: core.PersistentVolumeClaim
    volume: storage.PersistentVolume | None
    """One that exists; None: a provisioner makes one for the node."""


def unbound(cache: Cache, need: PodInfo, pod: core.Pod, node: str) -> tuple[Choice, ...] | None:
    """Return what is to be written so that a pod's claims get volumes; None: every volume of the pod is there."""
    waits = wanted.unbound(need.volumes)
    if not waits:
        return None
    labels = cache.views[node].labels if node in cache.views else {}
    chosen = wanted.chosen(need.volumes, name=node, labels=labels) or {}
    found = list[Choice]()
    for one in waits:
        claim, volume = cache.claims.claim(pod.metadata.namespace, one.claim), chosen.get(one.claim, "")
        is_done = any(each.is_taken for each in one.volumes) or (not volume and one.node == node)
        if claim is not None and not is_done:
            found.append(Choice(claim, cache.claims.volume(volume) if volume else None))
    return tuple(found)


def words(need: PodInfo, node: str) -> str:
    """Return what is said of a pod while its volumes, or those of its group, are made."""
    if names := ", ".join(one.claim for one in wanted.unbound(need.volumes)):
        return f"room is held on {node} until its claims have their volumes there: {names}"
    return f"room is held on {node} until the claims of its group have their volumes"


def give(cache: Cache, waits: Iterable[Choice]) -> None:
    """Count the chosen volumes as given, so that the next pod of a group takes others."""
    for one in waits:
        if one.volume is not None:
            cache.claims.note(claims.given(one.volume, one.claim))


def take_back(cache: Cache, waits: Iterable[Choice]) -> None:
    """Count volumes as they were before `give`."""
    for one in waits:
        if one.volume is not None:
            cache.claims.note(one.volume)


async def choose(store: Store, cache: Cache, waits: Iterable[Choice], node: str) -> None:
    """Give claims their volumes, or write the node on them; one that has changed since is left: its pod is judged anew.

    Raises: Unavailable: the store does not answer.
    """
    for one in waits:
        before: claims.Object = one.claim if one.volume is None else one.volume
        after: claims.Object = (
            claims.chosen(one.claim, node) if one.volume is None else claims.given(one.volume, one.claim)
        )
        if not cache.claims.is_current(before):
            continue
        # Believed at once, so that no other pod chooses another node, or the same volume, meanwhile.
        cache.claims.note(after)
        try:
            if one.volume is None:
                await store.apply(claims.on_node(one.claim, node), manager=MANAGER)
            else:
                await store.apply(claims.gift(one.volume, one.claim), manager=MANAGER)
        except errors.FairleadError as error:
            if cache.claims.is_current(after):
                cache.claims.note(before)
            if isinstance(error, errors.Unavailable):
                raise
            name = one.claim.metadata.name
            telemetry.log.warning("volume not chosen", claim=name, reason=error.reason, error=error.message)
