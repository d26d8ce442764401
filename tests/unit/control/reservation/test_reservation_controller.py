"""The controller of reservations: warns, ends, notes use and gives back, over a store."""

from __future__ import annotations

import datetime as dt

from fairlead.control.reservation.reservation import ReservationKeeper
from fairlead.settings import ReserveSettings
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec
from fairlead.wire.kubernetes import core, meta
from tests.unit.control.scheduler.plane import GPU, Plane

_START = dt.datetime(2027, 1, 4, 9, tzinfo=dt.UTC).timestamp()


class _Clock:
    now = _START - 3600

    def __call__(self) -> float:
        return self.now


async def _plane() -> tuple[Plane, ReservationKeeper, _Clock]:
    plane, clock = Plane(), _Clock()
    await plane.add_node("a", 4)
    await plane.store.create(core.Namespace(metadata=meta.ObjectMeta(name="vision")))
    spec = ReservationSpec(gpus=4, start="2027-01-04T09:00", zone="UTC", duration_seconds=7200)
    await plane.store.create(Reservation(metadata=meta.ObjectMeta(name="night", namespace="vision"), spec=spec))
    keeper = ReservationKeeper(plane.store, plane.placement, ReserveSettings(), resource=GPU, clock=clock)
    return plane, keeper, clock


async def _place(plane: Plane, name: str, gpus: int, namespace: str = "default") -> None:
    pod = await plane.add_pod(name, gpus, namespace=namespace)
    await plane.placement.bind(pod, "a")


async def test_the_owner_of_a_container_hears_first_and_then_it_is_ended() -> None:
    plane, keeper, clock = await _plane()
    await _place(plane, "late", 4)
    assert await keeper.reconcile("") == 60
    assert await plane.messages("ReservationAhead") == []
    clock.now = _START - 900
    await keeper.reconcile("")
    (said,) = await plane.messages("ReservationAhead")
    assert said.startswith("4 GPUs are reserved for others from Mon 04 Jan 09:00 UTC")
    assert "vision" not in said
    await keeper.reconcile("")
    assert len(await plane.messages("ReservationAhead")) == 1
    assert plane.placement.ended == []
    clock.now = _START
    await keeper.reconcile("")
    assert plane.placement.ended == ["late"]
    assert len(await plane.messages("Reserved")) == 1


async def test_a_window_that_nobody_used_is_given_back_once_and_said() -> None:
    plane, keeper, clock = await _plane()
    clock.now = _START + 1799
    await keeper.reconcile("")
    assert (await plane.store.get(Reservation, "night", "vision")).status.released == ()
    clock.now = _START + 1800
    await keeper.reconcile("")
    await keeper.reconcile("")
    found = await plane.store.get(Reservation, "night", "vision")
    assert found.status.released == (meta.emit_time(_START),)
    (said,) = await plane.messages("ReservationReleased")
    assert said.startswith("4 GPUs are given back: nobody used them for 30 minutes")


async def test_one_that_was_used_is_kept_though_its_container_ended_and_the_process_began_anew() -> None:
    plane, keeper, clock = await _plane()
    clock.now = _START + 10
    await _place(plane, "own", 4, namespace="vision")
    await keeper.reconcile("")
    await plane.end("own", "vision")
    again = ReservationKeeper(plane.store, plane.placement, ReserveSettings(), resource=GPU, clock=clock)
    clock.now = _START + 3600
    await again.reconcile("")
    assert (await plane.store.get(Reservation, "night", "vision")).status.released == ()


async def test_a_clock_that_jumps_over_the_begin_ends_nobody_unwarned() -> None:
    plane, keeper, clock = await _plane()
    await _place(plane, "late", 4)
    await keeper.reconcile("")
    clock.now = _START + 600
    await keeper.reconcile("")
    assert plane.placement.ended == []
    clock.now = _START - 7200  # and back
    await keeper.reconcile("")
    assert plane.placement.ended == []
    assert len(await plane.messages("ReservationAhead")) == 1


async def test_one_that_is_over_is_shown_for_a_day_and_removed() -> None:
    plane, keeper, clock = await _plane()
    clock.now = _START + 7200 + 3600
    await keeper.reconcile("")
    assert len((await plane.store.list(Reservation)).items) == 1
    clock.now = _START + 7200 + 86401
    await keeper.reconcile("")
    assert (await plane.store.list(Reservation)).items == ()
    assert await keeper.reconcile("") is None
    assert (await plane.store.list(core.Pod)).items == ()


async def test_what_is_reserved_for_a_namespace_goes_with_it() -> None:
    plane, keeper, _clock = await _plane()
    await keeper.reconcile("")
    assert len((await plane.store.list(Reservation)).items) == 1
    await plane.store.delete(core.Namespace, "vision")
    await keeper.reconcile("")
    assert (await plane.store.list(Reservation)).items == ()
