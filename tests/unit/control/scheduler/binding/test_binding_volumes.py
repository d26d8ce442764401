"""A choice for a claim that was made of an older version of it changes nothing."""

from __future__ import annotations

import msgspec

from fairlead.control.scheduler.binding import volumes
from fairlead.plan.schedule.cache.cache import Cache
from fairlead.plan.schedule.constraint import Reservation
from fairlead.plan.schedule.queue.queue import SchedulingQueue
from fairlead.plan.schedule.volume.volumes import NAME, Choice, Volumes
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.scheduling import storage
from tests.unit.control.scheduler.plane import Plane


async def test_a_claim_that_was_bound_since_the_choice_stays_bound() -> None:
    """Noted again as it was, it kept its pod waiting until somebody touched the claim."""
    store, cache = Plane().store, Cache(SchedulingQueue(), lambda _pod: True)
    known = cache.constraints[NAME]
    assert isinstance(known, Volumes)
    made = core.PersistentVolumeClaim(metadata=meta.ObjectMeta(name="data", namespace="default"))
    old = await store.create(made)
    known.note(old)
    reserved = Reservation(constraint=NAME, node="a", writes=(Choice(old, None),), changes=())
    bound = await store.update(msgspec.structs.replace(old, spec=core.ClaimSpec(volume_name="made")))
    known.note(bound)

    await volumes.bind(store, cache, reserved)

    assert known.is_current(bound)
    assert await store.get(core.PersistentVolumeClaim, "data", "default") == bound


async def test_a_claim_as_it_was_chosen_for_gets_its_node() -> None:
    store, cache = Plane().store, Cache(SchedulingQueue(), lambda _pod: True)
    known = cache.constraints[NAME]
    assert isinstance(known, Volumes)
    old = await store.create(core.PersistentVolumeClaim(metadata=meta.ObjectMeta(name="data", namespace="default")))
    known.note(old)
    await volumes.bind(store, cache, Reservation(constraint=NAME, node="a", writes=(Choice(old, None),), changes=()))
    found = await store.get(core.PersistentVolumeClaim, "data", "default")
    assert found.metadata.annotations[storage.SELECTED_NODE] == "a"
