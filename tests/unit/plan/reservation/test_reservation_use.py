"""Which containers a reservation lets start: refused for good, or waiting until when."""

from __future__ import annotations

import datetime as dt

import pytest

from fairlead import errors
from fairlead.plan.reservation import calendar, use
from fairlead.wire.fairlead.reservation import Reservation, ReservationSpec, ReservationStatus
from fairlead.wire.kubernetes import meta

_START = dt.datetime(2026, 11, 30, 9, tzinfo=dt.UTC).timestamp()


def _item(*, released: tuple[str, ...] = (), **more: str) -> Reservation:
    spec = ReservationSpec(gpus=4, start="2026-11-30T09:00", zone="UTC", duration_seconds=3600, **more)
    about = meta.ObjectMeta(name="night", namespace="vision")
    return Reservation(metadata=about, spec=spec, status=ReservationStatus(released=released))


@pytest.mark.parametrize(
    ("gpus", "item", "now", "reason"),
    [
        (1, None, _START, "ReservationNotFound"),
        (0, _item(), _START, "ReservationUnused"),
        (5, _item(), _START, "ReservationTooSmall"),
        (1, _item(), _START + 3600, "ReservationOver"),
        (1, _item(released=(calendar.start_text(_START),)), _START + 60, "ReservationOver"),
    ],
)
def test_what_no_window_lets_start_is_refused(gpus: int, item: Reservation | None, now: float, reason: str) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        use.check("night", "vision", gpus, item, now)
    assert caught.value.reason == reason
    assert caught.value.hint


def test_one_that_is_ahead_or_open_is_taken() -> None:
    use.check("night", "vision", 4, _item(), _START - 60)
    use.check("night", "vision", 4, _item(), _START + 60)


def test_a_series_begins_again_where_a_window_was_given_back() -> None:
    item = _item(repeat="daily", until="2026-12-01", released=(calendar.start_text(_START),))
    assert "Tue 01 Dec 09:00 UTC" in use.waits("night", item, _START + 60)
    assert use.waits("night", item, _START + 86400) == ""


def test_its_containers_have_its_gpus_together() -> None:
    assert use.full("night", 4, 2, 2) == ""
    assert "has 4 GPUs and containers in it hold 3" in use.full("night", 4, 3, 2)
