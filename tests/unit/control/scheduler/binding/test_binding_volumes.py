"""A choice for a claim that was made of an older version of it changes nothing."""

from __future__ import annotations

import msgspec

from fairlead.control.scheduler import volumebinding
from fairlead.plan.schedule.cache import Cache
from fairlead.plan.schedule.queue import SchedulingQueue
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import storage
from tests.unit.control.scheduler.plane import Plane


async def test_a_claim_that_was_bound_since_the_choice_stays_bound() -> None:
    """Noted again as it was, it kept its pod waiting until somebody touched the claim."""
    store, cache = Plane().store, Cache(SchedulingQueue(lambda: 0.0), lambda _pod: True, lambda: 0.0)
    made = core.PersistentVolumeClaim(metadata=meta.ObjectMeta(name="data", namespace="default"))
    old = await store.create(made)
    cache.claims.note(old)
    choice = volumebinding.Choice(old, None)
    bound = await store.update(msgspec.structs.replace(old, spec=core.ClaimSpec(volume_name="made")))
    cache.claims.note(bound)

    await volumebinding.choose(store, cache, (choice,), "a")

    assert cache.claims.claim("default", "data") == bound
    assert await store.get(core.PersistentVolumeClaim, "data", "default") == bound


async def test_a_claim_as_it_was_chosen_for_gets_its_node() -> None:
    store, cache = Plane().store, Cache(SchedulingQueue(lambda: 0.0), lambda _pod: True, lambda: 0.0)
    old = await store.create(core.PersistentVolumeClaim(metadata=meta.ObjectMeta(name="data", namespace="default")))
    cache.claims.note(old)
    await volumebinding.choose(store, cache, (volumebinding.Choice(old, None),), "a")
    found = await store.get(core.PersistentVolumeClaim, "data", "default")
    assert found.metadata.annotations[storage.SELECTED_NODE] == "a"
