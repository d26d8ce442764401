"""What may be reserved: by what there is, by others' reservations, by a tenant's limits."""

from __future__ import annotations

import datetime as dt
import math
import time

import msgspec
import pytest

from fairlead import errors
from fairlead.plan.reservation import calendar, rule
from fairlead.plan.reservation.profile import Holder
from fairlead.settings import ReserveSettings
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec
from fairlead.wire.kubernetes import meta

_NOW = dt.datetime(2026, 11, 29, 12, tzinfo=dt.UTC).timestamp()
_SETTINGS = ReserveSettings(gpu_hours=100, ahead_days=30, most=3, lead_h=8)


def _item(
    start: str = "2026-11-30T09:00",
    gpus: int = 4,
    hours: float = 3,
    name: str = "night",
    space: str = "vision",
    **more: str,
) -> Reservation:
    spec = ReservationSpec(gpus=gpus, start=start, zone="UTC", duration_seconds=int(hours * 3600), **more)
    return Reservation(metadata=meta.ObjectMeta(name=name, namespace=space), spec=spec)


def _check(item: Reservation, *others: Reservation, is_tenant: bool = True, holders: tuple[Holder, ...] = ()) -> None:
    spec = rule.bounded(item.spec, _SETTINGS, _NOW, is_tenant=is_tenant)
    asked = msgspec.structs.replace(item, spec=spec)
    ground = rule.Ground(capacity=8, others=others, holders=holders, now=_NOW)
    rule.check(asked, ground, _SETTINGS, is_tenant=is_tenant)


def test_one_that_fits_is_taken() -> None:
    _check(_item(), _item(name="other", space="speech"))


def test_a_conflict_says_who_and_when() -> None:
    with pytest.raises(errors.Insufficient) as caught:
        _check(_item(gpus=5), _item(name="other", space="speech", start="2026-11-30T11:00"))
    assert "4 of 8 are reserved from Mon 30 Nov 11:00 UTC to Mon 30 Nov 12:00 UTC" in caught.value.message
    assert "speech" not in caught.value.message
    named = rule.with_whom(caught.value, lambda _space: True)
    assert named.message.endswith("for speech/other")
    hidden = rule.with_whom(caught.value, lambda space: space == "vision")
    assert "speech" not in f"{hidden.message}{hidden.hint}{hidden.context}"


def test_a_series_conflicts_in_any_of_its_windows() -> None:
    with pytest.raises(errors.Insufficient, match="Thu 03 Dec"):
        _check(_item(gpus=5, repeat="daily", until="2026-12-04"), _item("2026-12-03T10:00", space="speech"))


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (_item(gpus=9), "ReservationConflict"),
        (_item(gpus=0), "GPUsInvalid"),
        (_item("2026-11-29T01:00"), "ReservationOver"),
        (_item(hours=24 * 40), "DurationInvalid"),
        (_item(hours=0), "DurationInvalid"),
        (_item(repeat="hourly"), "RepeatInvalid"),
        (_item(until="2026-12-04"), "UntilInvalid"),
        (_item(repeat="daily", until="2026-11-01"), "UntilInvalid"),
        (_item(repeat="daily", until="9999-12-31"), "ReservedTooFar"),
        (_item("8999-12-31T09:00"), "ReservedTooFar"),
        (_item("2027-03-01T09:00"), "ReservedTooFar"),
        (_item(repeat="daily", hours=23.5), "DurationInvalid"),
        (_item(gpus=8, hours=12.75), "ReservationQuota"),
        (_item(gpus=8, hours=1, repeat="daily"), "ReservationQuota"),
    ],
)
def test_what_no_tenant_may_is_refused(item: Reservation, reason: str) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        _check(item)
    assert caught.value.reason == reason


def test_a_tenant_has_so_many_and_root_more() -> None:
    others = [_item(name=f"r{number}", gpus=1) for number in range(3)]
    with pytest.raises(errors.Denied, match="3 reservations are yours"):
        _check(_item(gpus=1), *others)
    _check(_item(gpus=1), *others, is_tenant=False)
    _check(_item(gpus=8, hours=100, start="2027-03-01T09:00"), is_tenant=False)


def test_even_root_reserves_no_more_than_a_year_ahead() -> None:
    with pytest.raises(errors.Denied, match="366 days"):
        _check(_item("2028-03-01T09:00"), is_tenant=False)


def test_one_that_repeats_ends_as_far_ahead_as_may_be_reserved() -> None:
    spec = rule.bounded(_item(repeat="weekly").spec, _SETTINGS, _NOW, is_tenant=True)
    assert spec.until == "2026-12-29"


def test_a_tenant_has_nobody_ended_soon() -> None:
    endless = Holder(uid="u", namespace="speech", gpus=6, until=math.inf)
    with pytest.raises(errors.Insufficient, match="2 of the 4 GPUs are held by containers that go on") as caught:
        _check(_item("2026-11-29T13:00"), holders=(endless,))
    assert caught.value.hint == "begin at Sun 29 Nov 20:00 UTC or later, or reserve 2 now"
    _check(_item("2026-11-29T13:00", gpus=2), holders=(endless,))
    _check(_item("2026-11-29T20:00"), holders=(endless,))
    _check(_item("2026-11-29T13:00"), holders=(endless,), is_tenant=False)


def test_a_thousand_that_repeat_for_a_year_are_judged_quickly() -> None:
    others = [
        _item(
            f"2026-11-30T{number % 24:02}:{number // 24:02}",
            gpus=1,
            hours=0.01,
            name=f"r{number}",
            space="speech",
            repeat="daily",
            until="2027-11-01",
        )
        for number in range(300)
    ]
    with pytest.raises(errors.Denied, match="20000 windows are ahead"):
        _check(_item(repeat="daily", gpus=1, hours=1, until="2026-12-20"), *others)
    others = others[:50]
    begun = time.perf_counter()
    with pytest.raises(errors.Denied, match="30 days"):
        _check(_item(repeat="daily", until="2027-11-01"), *others)
    _check(_item(repeat="daily", gpus=1, hours=1, until="2026-12-20"), *others)
    assert time.perf_counter() - begun < 5
    assert len(calendar.all_windows(others[:1], _NOW, _NOW + 1e9)) > 300
