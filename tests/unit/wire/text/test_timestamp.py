"""RFC 3339 times: written in one form, read in every precision, and refused where they are none."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.wire.text import timestamp

_FORM = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{6})?Z")
_FIRST, _LAST = -62135596800, 253402300799
"""The years 1 and 9999: engines say the first of an image without a date."""


# The last second and a fraction may round to the year 10000.
@given(st.integers(_FIRST, _LAST - 1), st.integers(0, 999_999))
def test_what_is_written_is_read_back_to_the_microsecond(seconds: int, micros: int) -> None:
    text = timestamp.emit(seconds + micros / 1e6)
    assert _FORM.fullmatch(text)
    found = timestamp.parse(text)
    assert found is not None
    assert abs(found - (seconds + micros / 1e6)) < 2e-6 * max(1.0, abs(seconds) / 1e9)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1970-01-01T00:00:01Z", 1.0),
        ("1970-01-01T01:00:01.500000001+01:00", 1.500000001),
        ("0001-01-01T00:00:00Z", float(_FIRST)),
    ],
)
def test_every_precision_and_zone_is_read(text: str, seconds: float) -> None:
    assert timestamp.parse(text) == seconds
    assert timestamp.unix_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "yesterday", "1970-01-01T00:00:01", "1970-13-01T00:00:00Z", "9" * 400, "\0"])
def test_what_is_no_time_is_none(text: str) -> None:
    assert timestamp.parse(text) is None
    assert timestamp.unix_seconds(text) == 0.0
