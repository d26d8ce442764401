"""The first pod of a queue: later ones pass it by only where they do not make it wait longer, or for so long."""

from __future__ import annotations

import datetime as dt

import msgspec

from fairlead.wire.kubernetes import core
from tests.unit.control.scheduler.plane import Plane


async def _start(plane: Plane, name: str, ago_s: float = 0) -> None:
    """Have a pod run since then, as its kubelet says."""
    pod = await plane.store.get(core.Pod, name, "default")
    since = (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago_s)).isoformat()
    status = msgspec.structs.replace(pod.status, phase="Running", start_time=since)
    await plane.store.update_status(msgspec.structs.replace(pod, status=status))


async def test_who_is_over_in_time_uses_the_room_that_is_held_and_others_do_not() -> None:
    plane = Plane()
    await plane.add_node("a", 4)
    await plane.add_pod("holder", 3, active_deadline_seconds=1000)
    async with plane.running():
        await plane.until_bound(["holder"])
        await _start(plane, "holder")
        await plane.add_pod("a-head", 4)
        said = await plane.until_said("a-head", "Room is held for it on a, at the latest free at")
        assert said.endswith(" UTC.")
        await plane.add_pod("b-endless", 1)
        await plane.until_said("b-endless", "Insufficient")
        await plane.add_pod("b-long", 1, active_deadline_seconds=2000)
        await plane.until_said("b-long", "Insufficient")
        await plane.add_pod("b-short", 1, active_deadline_seconds=100)
        found = await plane.until_bound(["b-short"])
        assert set(found) == {"holder", "b-short"}
        await plane.end("b-short")
        await plane.end("holder")
        assert set(await plane.until_bound(["a-head"])) == {"a-head"}


async def test_a_head_whose_time_is_not_known_is_passed_by_until_its_patience_ends() -> None:
    plane = Plane(head_wait_s=1)
    await plane.add_node("a", 4)
    await plane.add_pod("holder", 3)
    async with plane.running():
        await plane.until_bound(["holder"])
        await plane.add_pod("a-head", 4)
        await plane.until_said("a-head", "Insufficient")
        await plane.add_pod("b-passes", 1)
        await plane.until_bound(["b-passes"])
        await plane.until_said("a-head", "has waited long")
        await plane.end("b-passes")
        await plane.add_pod("b-late", 1)
        await plane.until_said("b-late", "Insufficient")
        await plane.end("holder")
        await plane.until_bound(["a-head"])
        assert set(await plane.bound()) == {"a-head"}


async def test_a_pod_that_fits_nowhere_ever_holds_nothing() -> None:
    plane = Plane(head_wait_s=0.01)
    await plane.add_node("a", 4)
    await plane.add_pod("huge", 5)
    async with plane.running():
        await plane.until_said("huge", "Insufficient")
        await plane.add_pod("b-small", 4)
        await plane.until_bound(["b-small"])


async def test_without_a_bound_the_first_is_passed_by() -> None:
    plane = Plane(head_wait_s=0)
    await plane.add_node("a", 4)
    await plane.add_pod("holder", 3, active_deadline_seconds=1000)
    async with plane.running():
        await plane.until_bound(["holder"])
        await _start(plane, "holder")
        await plane.add_pod("a-head", 4)
        await plane.until_said("a-head", "Insufficient")
        await plane.add_pod("b-small", 1)
        await plane.until_bound(["b-small"])
