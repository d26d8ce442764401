"""Back-off: waits double up to a limit, and are spread no further than said."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead import backoff


@given(st.lists(st.floats(min_value=0, max_value=1), min_size=1, max_size=20), st.floats(min_value=0, max_value=1))
def test_waits_double_up_to_a_limit_and_lose_at_most_the_jitter(chances: list[float], jitter: float) -> None:
    left = iter(chances)
    waits = backoff.Backoff(first_s=0.5, last_s=8, jitter=jitter, chance=lambda: next(left))
    for number, _ in enumerate(chances):
        full_s = min(8.0, 0.5 * 2**number)
        assert full_s * (1 - jitter) - 1e-9 <= waits.next() <= full_s + 1e-9


def test_a_reset_begins_again_at_the_first_wait() -> None:
    waits = backoff.Backoff(first_s=0.5, last_s=8, jitter=0)
    assert [waits.next() for _ in range(6)] == [0.5, 1, 2, 4, 8, 8]
    waits.reset()
    assert waits.next() == 0.5


def test_years_of_failures_do_not_overflow() -> None:
    assert backoff.doubled(10_000_000, first_s=0.1, last_s=30.0) == 30.0
