"""Reads when a reservation begins."""

from __future__ import annotations

import datetime as dt
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.plan.reservation import when

_BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
_NOW = dt.datetime(2026, 11, 29, 15, 30, 20, tzinfo=_BERLIN).timestamp()
"""A Sunday."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", "2026-11-29T15:30"),
        ("tomorrow 9:00", "2026-11-30T09:00"),
        ("Today 23:59", "2026-11-29T23:59"),
        ("16:00", "2026-11-29T16:00"),
        ("15:00", "2026-11-30T15:00"),
        ("mon 18:30", "2026-11-30T18:30"),
        ("sunday 18:00", "2026-11-29T18:00"),
        ("sun 9:00", "2026-12-06T09:00"),
        ("2026-12-24 9:00", "2026-12-24T09:00"),
        ("2026-12-24T09:00", "2026-12-24T09:00"),
        ("2026-12-24T09:00:00Z", "2026-12-24T10:00"),
        ("2026-12-24T09:00:00-05:00", "2026-12-24T15:00"),
    ],
)
def test_times_are_read_as_people_write_them(text: str, expected: str) -> None:
    assert when.parse(text, now=_NOW, where=_BERLIN).isoformat(timespec="minutes") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "soon", "25:00", "tomorrow", "9999-12-31 23:59", "2026-02-30 9:00", "\0", "../etc", "9:00 tomorrow"),
        *("9999-12-31T23:59:59-23:59", "0000-01-01 9:00", "\u0669:\u0660\u0660", "\x1b[31m9:00", "x" * 10**6),
    ],
)
def test_what_is_no_time_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        when.parse(text, now=_NOW, where=_BERLIN)
    assert caught.value.reason == "TimeInvalid"
    assert len(caught.value.message) < 200


@given(st.text(max_size=40))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    try:
        found = when.parse(text, now=_NOW, where=_BERLIN)
    except errors.Invalid:
        return
    assert found.tzinfo is None
    assert found.year < 9000


@pytest.mark.parametrize(
    "name", ["", "Mars/Olympus", "../../etc/passwd", "Europe/Berlin\0", "a" * 200, "/etc/localtime"]
)
def test_what_is_no_zone_is_refused(name: str) -> None:
    with pytest.raises(errors.Invalid, match="not a time zone"):
        when.zone(name)


@pytest.mark.parametrize("text", ["", "2026-13-01", "today", "20261231", "9999-99-99"])
def test_what_is_no_day_is_refused(text: str) -> None:
    with pytest.raises(errors.Invalid, match="not a day"):
        when.parse_day(text)
