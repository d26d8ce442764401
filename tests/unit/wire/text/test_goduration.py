"""Lengths of time as Go prints them."""

from __future__ import annotations

import pytest

from fairlead.wire.text import goduration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1m21.284220239s", 81.284220239), ("812.5ms", 0.8125), ("1h0m0.5s", 3600.5), ("350µs", 0.00035), ("0s", 0.0)],
)
def test_what_go_prints_is_read(text: str, seconds: float) -> None:
    assert goduration.parse(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "-1s", "1 s", "1s ", "1d", "s", "1.s", "1e3s", "9" * 13 + "s", "1s" * 21])
def test_anything_else_is_none(text: str) -> None:
    assert goduration.parse(text) is None
