"""GPUs that are reserved: who would still hold them then is not started, and is once nothing is in the way."""

from __future__ import annotations

import datetime as dt
import math
import time

import pytest

from fairlead.control.scheduler.controller import Scheduler
from fairlead.plan.schedule import constraints
from fairlead.plan.schedule.engine.rankings import EngineRankings
from fairlead.plan.schedule.reservation.reservations import Terms
from fairlead.settings import ControlSettings
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec
from fairlead.wire.kubernetes import core, meta
from tests.unit.control.scheduler.plane import Plane


class _Reserved(Plane):
    def __init__(self, *, terms: Terms | None = None, is_by_arrays: bool = False) -> None:
        super().__init__()
        more = (constraints.reservations(terms or Terms(), time.time),)
        rankings = EngineRankings("packed") if is_by_arrays else None
        self.scheduler = Scheduler(self.store, self.placement, ControlSettings(), rankings=rankings, more=more)

    async def reserve(
        self, gpus: int, in_s: float, for_s: int, *, name: str = "night", namespace: str = "vision"
    ) -> None:
        start = dt.datetime.fromtimestamp(time.time() + in_s, dt.UTC).replace(tzinfo=None).isoformat()
        spec = ReservationSpec(gpus=gpus, start=start, zone="UTC", duration_seconds=for_s)
        await self.store.create(Reservation(metadata=meta.ObjectMeta(name=name, namespace=namespace), spec=spec))


@pytest.mark.parametrize("is_by_arrays", [False, True])
async def test_who_reaches_into_a_reservation_waits_and_hears_why(is_by_arrays: bool) -> None:
    plane = _Reserved(is_by_arrays=is_by_arrays)
    await plane.add_node("a", 8)
    await plane.reserve(6, 3600, 3600)
    async with plane.running():
        await plane.add_pod("endless", 4)
        said = await plane.until_said("endless", "6 GPUs are reserved for vision from ")
        assert "(reservation night)" in said
        await plane.add_pod("long", 4, active_deadline_seconds=4000)
        await plane.until_said("long", "6 GPUs are reserved")
        await plane.add_pod("theirs", 4, namespace="speech")
        assert "vision" not in await plane.until_said("theirs", "6 GPUs are reserved from", namespace="speech")
        await plane.add_pod("small", 2)
        await plane.add_pod("short", 4, active_deadline_seconds=1000)
        assert set(await plane.until_bound(["small", "short"])) == {"small", "short"}
        await plane.end("short")
        await plane.add_pod("own", 6, namespace="vision")
        assert "own" in await plane.until_bound(["own"])


async def test_a_reservation_that_is_deleted_lets_them_go() -> None:
    plane = _Reserved()
    await plane.add_node("a", 4)
    await plane.reserve(4, 3600, 3600)
    async with plane.running():
        await plane.add_pod("endless", 4)
        await plane.until_said("endless", "4 GPUs are reserved")
        await plane.store.delete(Reservation, "night", "vision")
        await plane.until_bound(["endless"])


async def test_a_window_that_ends_lets_them_go_and_nobody_has_to_say_so() -> None:
    plane = _Reserved()
    await plane.add_node("a", 4)
    await plane.reserve(4, -1, 3)
    async with plane.running():
        await plane.add_pod("endless", 1)
        await plane.until_said("endless", "4 GPUs are reserved")
        await plane.until_bound(["endless"])


async def test_one_that_is_made_later_counts_for_who_waits_from_then_on() -> None:
    plane = _Reserved()
    await plane.add_node("a", 4)
    await plane.add_pod("holder", 4)
    async with plane.running():
        await plane.until_bound(["holder"])
        await plane.add_pod("waits", 4)
        await plane.until_said("waits", "Insufficient")
        await plane.reserve(4, 3600, 3600)
        await plane.until_said("waits", "4 GPUs are reserved")
        await plane.end("holder")
        await plane.add_pod("own", 4, namespace="vision")
        assert set(await plane.until_bound(["own"])) == {"own"}


async def test_without_a_limit_it_is_taken_to_run_as_long_as_the_setting_says() -> None:
    plane = _Reserved(terms=Terms(open_ended_s=1800))
    await plane.add_node("a", 4)
    await plane.reserve(4, 3 * 3600, 3600)
    async with plane.running():
        await plane.add_pod("endless", 4)
        await plane.until_bound(["endless"])


async def test_in_its_own_window_who_is_ended_for_the_next_may_start() -> None:
    plane = _Reserved(terms=Terms(open_ended_s=math.inf))
    await plane.add_node("a", 4)
    await plane.reserve(4, -10, 3600)
    await plane.reserve(4, 3590, 3600, name="next", namespace="speech")
    async with plane.running():
        await plane.add_pod("own", 4, namespace="vision")
        await plane.until_bound(["own"])


async def test_where_nobody_is_ended_it_may_not() -> None:
    plane = _Reserved(terms=Terms(is_ended=False))
    await plane.add_node("a", 4)
    await plane.reserve(4, -10, 3600)
    await plane.reserve(4, 3590, 3600, name="next", namespace="speech")
    async with plane.running():
        await plane.add_pod("own", 4, namespace="vision")
        await plane.until_said("own", "4 GPUs are reserved", namespace="vision")
        await plane.add_pod("timed", 4, namespace="vision", active_deadline_seconds=600)
        await plane.until_bound(["timed"])


_NIGHT = core.MachineOptions(reservation="night")


async def test_who_names_a_reservation_starts_in_its_window_and_not_before() -> None:
    plane = _Reserved()
    await plane.add_node("a", 8)
    await plane.reserve(4, 2, 3600)
    async with plane.running():
        await plane.add_pod("batch", 2, namespace="vision", machine=_NIGHT)
        await plane.until_said("batch", 'its reservation "night" begins ', namespace="vision")
        assert "batch" in await plane.until_bound(["batch"])


async def test_those_in_a_reservation_hold_no_more_than_it_has() -> None:
    plane = _Reserved()
    await plane.add_node("a", 8)
    await plane.reserve(4, -10, 3600)
    async with plane.running():
        await plane.add_pod("first", 3, namespace="vision", machine=_NIGHT)
        await plane.until_bound(["first"])
        await plane.add_pod("second", 2, namespace="vision", machine=_NIGHT)
        words = 'reservation "night" has 4 GPUs and containers in it hold 3 of them'
        await plane.until_said("second", words, namespace="vision")
        await plane.add_pod("beside", 2, namespace="vision")  # it names none, and there is room
        await plane.until_bound(["beside"])
        await plane.end("first", namespace="vision")
        await plane.until_bound(["second"])


async def test_a_reservation_that_is_deleted_keeps_who_waits_for_it_and_says_so() -> None:
    plane = _Reserved()
    await plane.add_node("a", 8)
    await plane.reserve(4, 3600, 3600)
    async with plane.running():
        await plane.add_pod("batch", 2, namespace="vision", machine=_NIGHT)
        await plane.until_said("batch", "begins", namespace="vision")
        await plane.store.delete(Reservation, "night", "vision")
        await plane.until_said("batch", 'its reservation "night" was deleted', namespace="vision")


async def test_a_group_is_counted_whole() -> None:
    plane = _Reserved()
    await plane.add_node("a", 4)
    await plane.reserve(2, 3600, 3600)
    async with plane.running():
        await plane.add_gang("too-large", 3)
        await plane.until_said("too-large-0", "2 GPUs are reserved")
        await plane.add_gang("fits", 2)
        assert set(await plane.until_bound(["fits-0", "fits-1"])) == {"fits-0", "fits-1"}
