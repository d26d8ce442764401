"""A week of reservations: each moment in one hour of one day, also where clocks change."""

from __future__ import annotations

import datetime as dt
import itertools
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.serve.console.draw import weekgrid
from fairlead.serve.v1.reservations.view import ReservationView, TakenView
from fairlead.wire.kubernetes import meta

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
SPRING, AUTUMN = dt.date(2027, 3, 22), dt.date(2026, 10, 19)
"""Mondays of the weeks whose Sunday has 23 and 25 hours in Berlin."""


def _item(first: str, *, hours: float, zone: str = "Europe/Berlin", **more: object) -> ReservationView:
    fields: dict[str, object] = {
        **dict.fromkeys(("state", "start", "end", "repeat", "until"), ""),
        "name": "night",
        "namespace": "default",
        "gpus": 4,
        "gpu_hours": 0.0,
        "windows": (),
        "released": (),
        **more,
    }
    return ReservationView(first=first, zone=zone, duration_seconds=round(hours * 3600), **fields)  # type: ignore[arg-type]


def _week(
    *items: ReservationView, monday: dt.date, taken: tuple[TakenView, ...] = (), now: float = 0.0
) -> weekgrid.Week:
    return weekgrid.week(items, taken, monday=monday, zone=BERLIN, now=now)


def _marked(week: weekgrid.Week, column: int) -> dict[str, str]:
    return {label: cells[column].first for label, cells in week.rows if cells[column].used}


def test_a_window_is_in_the_hours_that_it_covers_and_named_once_a_day() -> None:
    week = _week(_item("2026-11-30T22:30", hours=3), monday=dt.date(2026, 11, 30))
    assert _marked(week, 0) == {"22:00": "night 4", "23:00": ""}
    assert _marked(week, 1) == {"00:00": "night 4", "01:00": ""}
    assert [day.lines for day in week.days[:3]] == [
        ("22:30 to 24:00: night, 4 GPUs",),
        ("00:00 to 01:30: night, 4 GPUs",),
        (),
    ]


def test_the_hour_that_clocks_leave_out_is_no_hour_and_the_one_that_they_repeat_is_one_of_two() -> None:
    daily = _item("2026-10-01T01:00", hours=3, repeat="daily", until="2027-12-31")
    spring, autumn = _week(daily, monday=SPRING), _week(daily, monday=AUTUMN)
    assert [spring.rows[2][1][day].kind for day in (5, 6)] == ["own", "void"]
    assert _marked(spring, 6) == {"01:00": "night 4", "03:00": "", "04:00": ""}, "three hours by the clock's own length"
    assert "no such hour" in spring.rows[2][1][6].note
    assert "lasts 2 h" in autumn.rows[2][1][6].note
    assert _marked(autumn, 6) == {"01:00": "night 4", "02:00": ""}
    assert spring.days[6].lines == ("01:00 to 05:00: night, 4 GPUs",)
    assert autumn.days[6].lines == ("01:00 to 03:00: night, 4 GPUs",)


def test_others_are_counted_and_not_named() -> None:
    taken = TakenView(start="2026-11-30T08:00:00Z", end="2026-11-30T10:00:00Z", gpus=2)
    week = _week(_item("2026-11-30T10:00", hours=1), monday=dt.date(2026, 11, 30), taken=(taken,))
    nine, ten = (week.rows[hour][1][0] for hour in (9, 10))
    assert (nine.kind, nine.used, nine.first, nine.names) == ("others", 2, "others 2", ())
    assert (ten.kind, ten.used, ten.names) == ("own", 6, ("night",))
    assert week.days[0].lines[0] == "09:00 to 11:00: another team, 2 GPUs"


def test_a_window_that_was_given_back_is_free() -> None:
    item = _item("2026-11-30T10:00", hours=1, released=("2026-11-30T09:00:00.000000Z",))
    assert _marked(_week(item, monday=dt.date(2026, 11, 30)), 0) == {}


@pytest.mark.parametrize(
    "text", ["", "nix", "9999-12-31", "0001-01-01", "2026-13-01", "\u0662\u0660\u0662\u0666", "2026-11-29T"]
)
def test_a_week_that_cannot_be_shown_is_this_one(text: str) -> None:
    now = dt.datetime(2026, 11, 29, 23, 30, tzinfo=dt.UTC).timestamp()
    assert weekgrid.monday_of(text, now, BERLIN) == dt.date(2026, 11, 30), "it is Monday in Berlin already"
    assert weekgrid.monday_of("2026-12-09", now, BERLIN) == dt.date(2026, 12, 7)


ZONES = (
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "Pacific/Apia",
    "Africa/Cairo",
    "Asia/Kolkata",
)
ODD_ZONES = ("Antarctica/Troll", "America/Havana", "America/Asuncion")


@given(st.sampled_from(ZONES + ODD_ZONES), st.dates(dt.date(2010, 1, 1), dt.date(2028, 12, 31)))
def test_each_moment_of_a_week_is_in_one_cell(name: str, day: dt.date) -> None:
    zone, monday = zoneinfo.ZoneInfo(name), day - dt.timedelta(days=day.weekday())
    begin, end = (
        dt.datetime.combine(monday + dt.timedelta(days=days), dt.time(), tzinfo=zone).timestamp() for days in (0, 7)
    )
    whole = TakenView(start=meta.emit_time(begin), end=meta.emit_time(end), gpus=1)
    week = weekgrid.week((), (whole,), monday=monday, zone=zone, now=0.0)
    starts = [cells[column].start for column in range(7) for _, cells in week.rows]
    assert starts[0] == begin
    assert all(first <= second for first, second in itertools.pairwise([*starts, end]))
    for (label, cells), column in itertools.product(week.rows, range(7)):
        cell = cells[column]
        assert (cell.used == 1) == (cell.kind != "void")
        shown = dt.datetime.fromtimestamp(cell.start, zone)
        if cell.kind != "void" and not cell.note:
            assert shown.strftime("%H:%M") == label
