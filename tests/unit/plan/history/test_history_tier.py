"""Which resolution answers which question."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.history import tier

NOW = 1_700_000_000.0


def test_an_hour_is_answered_by_the_finest_samples() -> None:
    found = tier.choose(NOW - 3600, NOW, None, now=NOW, days=14)
    assert (found.tier, found.step_s) == (0, 10)
    assert found.begin <= NOW - 3600
    assert found.end >= NOW
    assert found.count in {360, 361}


def test_a_day_is_answered_by_minutes_and_a_week_by_ten_minutes() -> None:
    assert tier.choose(NOW - tier.DAY_S, NOW, None, now=NOW, days=14).tier == 1
    found = tier.choose(NOW - 7 * tier.DAY_S, NOW, None, now=NOW, days=14)
    assert (found.tier, found.step_s) == (2, 1800)


def test_a_year_has_bounded_points() -> None:
    found = tier.choose(NOW - 365 * tier.DAY_S, NOW, None, now=NOW, days=14)
    assert found.count <= tier.SHOWN + 1


def test_a_step_that_is_finer_than_what_is_kept_grows() -> None:
    found = tier.choose(NOW - 20 * 3600, NOW - 19 * 3600, 50, now=NOW, days=14)
    assert (found.tier, found.step_s) == (1, 60)


@pytest.mark.parametrize("step", [0, -10, 5, 15, 1 << 40])
def test_a_step_that_is_none_is_refused(step: int) -> None:
    with pytest.raises(errors.RequestError) as caught:
        tier.choose(NOW - 3600, NOW, step, now=NOW, days=14)
    assert caught.value.reason == "StepInvalid"


def test_too_many_points_are_refused_with_the_step_that_fits() -> None:
    with pytest.raises(errors.RequestError) as caught:
        tier.choose(NOW - 14 * tier.DAY_S, NOW, 10, now=NOW, days=14)
    assert "step=" in (caught.value.hint or "")


@pytest.mark.parametrize(("since", "until"), [(NOW, NOW), (NOW + 1, NOW), (NOW - 500 * tier.DAY_S, NOW), (-5, 10)])
def test_a_period_that_is_none_is_refused(since: float, until: float) -> None:
    with pytest.raises(errors.RequestError) as caught:
        tier.choose(since, until, None, now=NOW, days=14)
    assert caught.value.reason == "PeriodInvalid"
