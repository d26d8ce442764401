"""The scheduler's constraint of reservations: what time and clocks change, and how long many take."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any

import msgspec

from fairlead.plan.schedule import constraint
from fairlead.plan.schedule.reservation import reservations
from fairlead.plan.schedule.reservation.reservations import Reservations, Terms
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec
from fairlead.wire.kubernetes import core, meta

_START = dt.datetime(2027, 1, 4, 9, tzinfo=dt.UTC).timestamp()


class _Clock:
    now = _START - 600

    def __call__(self) -> float:
        return self.now


def _item(name: str, start: str = "2027-01-04T09:00", **more: str) -> Reservation:
    spec = ReservationSpec(gpus=1, start=start, zone="UTC", duration_seconds=3600, **more)
    return Reservation(metadata=meta.ObjectMeta(name=name, namespace="vision", uid=name), spec=spec)


def _pod(**spec: Any) -> core.Pod:
    wanted = core.ResourceRequirements(requests={"nvidia.com/gpu": 2})
    main = core.Container(name="main", image="i", resources=wanted)
    return core.Pod(metadata=meta.ObjectMeta(name="p", namespace="red"), spec=core.PodSpec(containers=(main,), **spec))


def _known(clock: _Clock, *items: Reservation) -> Reservations:
    known = Reservations(lambda _namespace: (), terms=Terms(), clock=clock)
    for item in items:
        known.note(item)
    known.expire()
    return known


def test_is_a_constraint_that_time_changes() -> None:
    known: object = _known(_Clock())
    assert isinstance(known, constraint.Timed)


def test_nothing_is_asked_where_nothing_is_reserved() -> None:
    known = _known(_Clock())
    assert not known.concerns(_pod())
    assert (known.due_s, known.has_limits, known.limits("a", {})) == (None, False, None)


def test_begins_and_ends_are_news_and_the_time_between_is_not() -> None:
    clock = _Clock()
    known = _known(clock, _item("night"))
    assert known.due_s == 60
    clock.now = _START - 20
    assert known.due_s == 20
    assert known.expire() is constraint.NOTHING
    clock.now = _START
    assert known.expire().pods is None
    assert known.expire() is constraint.NOTHING
    clock.now = _START + 3600
    assert known.expire().pods is None
    assert not known.has_limits


def test_a_clock_that_is_set_back_brings_windows_back() -> None:
    clock = _Clock()
    known = _known(clock, _item("night"))
    clock.now = _START + 86400
    known.expire()
    assert not known.has_limits
    clock.now = _START - 600
    assert known.expire().pods is None
    assert known.has_limits


def test_pods_that_ask_alike_ask_the_same_for_some_seconds() -> None:
    clock = _Clock()
    known = _known(clock, _item("night"))
    first = known.ask(_pod(active_deadline_seconds=600))
    clock.now += 1
    assert known.ask(_pod(active_deadline_seconds=600)) == first
    clock.now += 60
    assert known.ask(_pod(active_deadline_seconds=600)) != first


def test_what_ends_counts_with_its_grace() -> None:
    found = reservations.holder(_pod(active_deadline_seconds=600, termination_grace_period_seconds=45), 2, _START)
    assert found.until == _START + 600 + 45 + reservations.SLACK_S


def _in(name: str, *, uid: str = "p", gpus: int = 1) -> core.Pod:
    wanted = core.ResourceRequirements(requests={"nvidia.com/gpu": gpus})
    main = core.Container(name="main", image="i", resources=wanted)
    spec = core.PodSpec(containers=(main,), machine=core.MachineOptions(reservation=name))
    return core.Pod(metadata=meta.ObjectMeta(name=uid, namespace="vision", uid=uid), spec=spec)


def test_who_names_a_reservation_waits_for_its_window_and_hears_until_when() -> None:
    clock = _Clock()
    known = _known(clock, _item("night"))
    refused = known.refusal(_in("night"))
    assert refused is not None
    assert refused.why == 'its reservation "night" begins Mon 04 Jan 09:00 UTC, and it waits for that'
    clock.now = _START
    assert known.refusal(_in("night")) is None
    clock.now = _START + 3600
    refused = known.refusal(_in("night"))
    assert refused is not None
    assert "is over (it was Mon 04 Jan 09:00 UTC)" in refused.why


def test_who_names_one_that_is_gone_or_another_namespaces_hears_so() -> None:
    known = _known(_Clock())
    assert known.concerns(_in("night"))
    assert "was deleted" in str(known.refusal(_in("night")))
    others = _item("night")
    others = msgspec.structs.replace(others, metadata=meta.ObjectMeta(name="night", namespace="red", uid="x"))
    known.note(others)
    assert "was deleted" in str(known.refusal(_in("night")))


def test_a_list_of_ten_thousand_is_taken_in_quickly() -> None:
    clock, begun = _Clock(), time.perf_counter()
    known = _known(clock, *(_item(f"r{number}") for number in range(10_000)))
    assert known.has_limits
    assert time.perf_counter() - begun < 5
