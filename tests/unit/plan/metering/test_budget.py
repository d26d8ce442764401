"""What a budget asks for: told once a month each, refused when used up, stopped after the grace, anew each month."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.metering import budget
from fairlead.plan.metering.budget import Decision, Limit, Standing

NOW = dt.datetime(2026, 11, 20, tzinfo=dt.UTC).timestamp()
STOP = Limit(amount=Decimal(100), action=budget.STOP, grace_s=60)


def _look(limit: Limit, before: Standing, spent: float, at: float = NOW) -> Decision:
    return budget.decide(limit, before, Decimal(str(spent)), now=at)


def test_each_percentage_is_told_once_and_of_several_the_highest() -> None:
    told, standing = [], Standing()
    for spent in (10, 50, 79, 81, 85, 130, 140):
        found = _look(STOP, standing, spent)
        standing = found.standing
        told.append(found.tells)
    assert told == [0, 50, 0, 80, 0, 100, 0]
    assert _look(STOP, Standing(), 90).tells == 80


def test_what_is_used_up_is_refused_at_once_and_stopped_after_the_grace() -> None:
    found = _look(STOP, Standing(), 100)
    assert (found.stops, budget.refuses(STOP, found.standing, now=NOW)) == (False, True)
    assert _look(STOP, found.standing, 100, NOW + 59).stops is False
    late = _look(STOP, found.standing, 100, NOW + 60)
    assert (late.stops, late.standing.exceeded_at) == (True, NOW)
    for action, refuses in ((budget.NOTIFY, False), (budget.REFUSE, True)):
        limit = Limit(amount=Decimal(100), action=action)
        after = _look(limit, found.standing, 100, NOW + 999)
        assert (after.stops, budget.refuses(limit, after.standing, now=NOW)) == (False, refuses)


def test_a_new_month_and_a_higher_amount_begin_with_nothing_used_up() -> None:
    used = _look(STOP, Standing(), 100).standing
    december = NOW + 15 * 86400
    assert not budget.refuses(STOP, used, now=december)
    assert _look(STOP, used, 60, december).tells == 50
    raised = Limit(amount=Decimal(200), action=budget.STOP)
    assert _look(raised, used, 100).standing.exceeded_at is None


@given(st.lists(st.floats(0, 300), max_size=20))
def test_nothing_is_told_twice_in_a_month(amounts: list[float]) -> None:
    told, standing = [], Standing()
    for spent in amounts:
        found = _look(STOP, standing, spent)
        standing = found.standing
        told += [found.tells] if found.tells else []
    assert told == sorted(set(told))
