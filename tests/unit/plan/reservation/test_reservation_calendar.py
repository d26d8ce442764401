"""Windows of reservations: repeats, time zones, hours that come twice or not at all."""

from __future__ import annotations

import datetime as dt
import itertools
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.reservation import calendar
from fairlead.wire.fairlead.reservation import REPEATS, Reservation, ReservationSpec, ReservationStatus
from fairlead.wire.kubernetes import meta

_FAR = 4e9


def _at(text: str) -> float:
    return dt.datetime.fromisoformat(text).timestamp()


def _item(start: str, **fields: object) -> Reservation:
    spec = {"gpus": 4, "zone": "Europe/Berlin", "duration_seconds": 3600, **fields}
    return Reservation(
        metadata=meta.ObjectMeta(name="night", namespace="vision"),
        spec=ReservationSpec(start=start, **spec),  # type: ignore[arg-type] # by name
    )


def _starts(item: Reservation, begin: str, end: str) -> list[str]:
    zone = zoneinfo.ZoneInfo(item.spec.zone)
    found = calendar.windows(item, _at(begin), _at(end))
    return [dt.datetime.fromtimestamp(one.start, zone).isoformat(timespec="minutes") for one in found]


def test_nine_stays_nine_where_clocks_are_set_forward() -> None:
    item = _item("2027-03-27T09:00", repeat="daily", until="2027-03-29")
    assert _starts(item, "2027-03-01T00:00Z", "2027-05-01T00:00Z") == [
        "2027-03-27T09:00+01:00",
        "2027-03-28T09:00+02:00",
        "2027-03-29T09:00+02:00",
    ]


def test_a_time_that_there_is_not_begins_an_hour_later() -> None:
    item = _item("2027-03-28T02:30")
    assert _starts(item, "2027-03-01T00:00Z", "2027-05-01T00:00Z") == ["2027-03-28T03:30+02:00"]


def test_a_time_that_comes_twice_begins_once_the_first_time() -> None:
    item = _item("2026-10-24T02:30", repeat="daily", until="2026-10-26")
    assert _starts(item, "2026-10-01T00:00Z", "2026-12-01T00:00Z") == [
        "2026-10-24T02:30+02:00",
        "2026-10-25T02:30+02:00",
        "2026-10-26T02:30+01:00",
    ]


def test_weekdays_leave_weekends_out() -> None:
    item = _item("2026-11-27T09:00", repeat="weekdays", until="2026-12-01")
    assert [text[:10] for text in _starts(item, "2026-11-01T00:00Z", "2027-01-01T00:00Z")] == [
        "2026-11-27",
        "2026-11-30",
        "2026-12-01",
    ]


def test_weekly_keeps_its_day_however_late_it_is_asked() -> None:
    item = _item("2026-11-27T09:00", repeat="weekly", until="2027-11-30")
    assert [text[:10] for text in _starts(item, "2027-06-01T00:00Z", "2027-06-12T00:00Z")] == [
        "2027-06-04",
        "2027-06-11",
    ]


def test_a_window_that_was_given_back_is_left_out() -> None:
    item = _item("2026-11-30T09:00", repeat="daily", until="2026-12-01")
    gone = calendar.start_text(_at("2026-11-30T09:00+01:00"))
    item = Reservation(metadata=item.metadata, spec=item.spec, status=ReservationStatus(released=(gone,)))
    assert _starts(item, "2026-11-01T00:00Z", "2027-01-01T00:00Z") == ["2026-12-01T09:00+01:00"]
    assert not calendar.is_over(item, _at("2026-12-01T00:00Z"))
    assert calendar.is_over(item, _at("2026-12-02T00:00Z"))


@pytest.mark.parametrize(
    "fields", [{"zone": "Nowhere"}, {"until": "x", "repeat": "daily"}, {"start": "9"}, {"start": "9999-12-31T23:59"}]
)
def test_what_cannot_be_read_holds_nothing_or_is_far(fields: dict[str, str]) -> None:
    item = _item(**{"start": "2026-11-30T09:00", **fields})
    assert calendar.windows(item, _at("2026-11-01T00:00Z"), _FAR) == ()


def test_windows_that_would_overlap_are_refused() -> None:
    with pytest.raises(errors.Invalid, match="overlap"):
        calendar.check_length(_item("2026-11-30T09:00", repeat="daily", duration_seconds=86400).spec)


@given(
    st.datetimes(min_value=dt.datetime(2026, 1, 1), max_value=dt.datetime(2027, 1, 1)),  # noqa: DTZ001 - on a wall
    st.sampled_from(REPEATS[1:]),
    st.integers(1, 60),
    st.integers(60, 23 * 3600),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Asia/Kathmandu"]),
    st.floats(0, 90 * 86400),
)
def test_windows_do_not_overlap_and_do_not_depend_on_when_they_are_asked(
    start: dt.datetime, repeat: str, days: int, length: int, zone: str, later: float
) -> None:
    until = (start + dt.timedelta(days=days)).date().isoformat()
    text = start.replace(second=0, microsecond=0).isoformat(timespec="minutes")
    item = _item(text, repeat=repeat, until=until, duration_seconds=length, zone=zone)
    every = calendar.windows(item, start.timestamp() - 2 * 86400, _FAR)
    begin = start.timestamp() + later
    assert all(one.end <= after.start for one, after in itertools.pairwise(every))
    assert calendar.windows(item, begin, _FAR) == tuple(one for one in every if one.end > begin)
