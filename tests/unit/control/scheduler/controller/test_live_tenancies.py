"""A pod of a tenancy that is not ready is placed nowhere, also where the scheduler is the only one that looks."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.wire.fairlead import tenancy as kind
from fairlead.wire.kubernetes import core, meta
from tests.unit.control.scheduler.plane import Plane

_SPACE = "t-red-0000aa"


async def _plane(phase: str) -> Plane:
    plane = Plane()
    await plane.add_node("a", 8)
    annotations = {kind.STATE: phase} if phase else {}
    about = meta.ObjectMeta(name=_SPACE, labels={kind.UID: "0000aa"}, annotations=annotations)
    await plane.store.create(core.Namespace(metadata=about))
    await plane.store.create(core.Namespace(metadata=meta.ObjectMeta(name="default")))
    return plane


async def _say(plane: Plane, phase: str) -> None:
    known = await plane.store.get(core.Namespace, _SPACE)
    about = msgspec.structs.replace(known.metadata, annotations={kind.STATE: phase})
    await plane.store.update(msgspec.structs.replace(known, metadata=about))


@pytest.mark.parametrize("phase", ["", kind.PENDING, kind.SUSPENDED, kind.TERMINATING])
async def test_its_pods_wait_until_it_is_ready_and_others_do_not(phase: str) -> None:
    plane = await _plane(phase)
    await plane.add_pod("held", namespace=_SPACE)
    await plane.add_pod("free")
    async with plane.running():
        await plane.until_bound(["free"])
        said = await plane.until_said("held", "tenancy", namespace=_SPACE)
        assert said == f"the tenancy of namespace {_SPACE} is {phase or kind.PENDING}, not Ready"
        await _say(plane, kind.READY)
        await plane.until_bound(["held"])


async def test_its_pods_are_not_placed_any_more_once_it_is_not_ready() -> None:
    plane = await _plane(kind.READY)
    await plane.add_pod("early", namespace=_SPACE)
    async with plane.running():
        await plane.until_bound(["early"])
        await _say(plane, kind.PENDING)
        await plane.add_pod("late", namespace=_SPACE)
        await plane.until_said("late", "not Ready", namespace=_SPACE)


async def test_no_pod_of_a_group_goes_while_one_is_of_a_tenancy_that_is_not_ready() -> None:
    plane = await _plane(kind.PENDING)
    await plane.add_gang("team", 2, namespace=_SPACE)
    async with plane.running():
        await plane.until_said("team-0", "tenancy", namespace=_SPACE)
        assert await plane.bound() == {}
        await _say(plane, kind.READY)
        await plane.until_bound(["team-0", "team-1"])
