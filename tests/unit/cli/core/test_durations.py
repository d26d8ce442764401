"""One grammar of lengths of time for every option that takes one."""

from __future__ import annotations

import click
import pytest

from fairlead.cli.core import options
from tests.unit.cli.conftest import Service


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("30", 30), ("3s", 3), ("10m", 600), ("2h30m", 9000), ("1d", 86400), ("1.5m", 90), ("3000ms", 3)],
)
def test_a_length_of_time_is_read(text: str, seconds: int) -> None:
    assert options.Duration().convert(text, None, None) == seconds


@pytest.mark.parametrize(
    "text", ["", "3 s", "s", "-3", "-3s", "3x", "1h x", "1e3", "\N{ARABIC-INDIC DIGIT THREE}s", "9" * 40, "inf", "nan"]
)
def test_what_is_none_is_refused_by_its_text(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a length of time, such as 30"):
        options.Duration().convert(text, None, None)


def test_parts_of_a_second_are_refused_where_whole_ones_are_counted() -> None:
    with pytest.raises(click.BadParameter, match="whole seconds"):
        options.Duration().convert("500ms", None, None)
    assert options.Duration(is_whole=False).convert("500ms", None, None) == 0.5
    with pytest.raises(click.BadParameter, match=r"too short: 1 s or more"):
        options.Duration(least_s=1).convert("0", None, None)


def test_verbs_take_the_same_words(service: Service) -> None:
    made = service.fairlead(
        "run", "-d", "--name", "a", "--timeout", "1h", "--stop-timeout", "3s", "demo", "sleep", "60"
    )
    assert made.exit_code == 0, made.stderr
    waited = service.fairlead("wait", "--timeout", "50ms", "a")
    assert waited.exit_code == 5
    assert service.fairlead("logs", "--since", "2h30m", "a").exit_code == 0
    assert service.fairlead("stop", "-t", "0s", "a").exit_code == 0
    refused = service.fairlead("wait", "--timeout", "soon", "a")
    assert (refused.exit_code, '"soon" is not a length of time, such as 30' in refused.stderr) == (2, True)
