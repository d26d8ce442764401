"""Who may start beside reservations: never more is promised than there is, and nobody who is let in delays one."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.reservation import profile
from fairlead.plan.reservation.calendar import Window
from fairlead.plan.reservation.profile import Asked, Holder

_SPACES = ("vision", "speech", "root")
_windows = st.builds(
    lambda space, number, gpus, start, length: Window(
        namespace=space, name=f"r{number}", gpus=gpus, start=float(start), end=float(start + length)
    ),
    st.sampled_from(_SPACES),
    st.integers(0, 9),
    st.integers(1, 8),
    st.integers(0, 60),
    st.integers(1, 20),
)
_pods = st.tuples(st.sampled_from(_SPACES), st.integers(1, 8), st.integers(0, 60), st.integers(1, 40))


def _window(start: float, end: float, gpus: int = 4, namespace: str = "vision", name: str = "night") -> Window:
    return Window(namespace=namespace, name=name, gpus=gpus, start=start, end=end)


def _asked(since: float, until: float, gpus: int = 4, namespace: str = "root") -> Asked:
    return Asked(namespace=namespace, gpus=gpus, since=since, until=until)


def _kept(windows: list[Window], capacity: int) -> list[Window]:
    """Return the windows that are taken in one after another, as the API does."""
    kept = list[Window]()
    for one in windows:
        if profile.overbooked(profile.build([*kept, one]), capacity, [one]) is None:
            kept.append(one)
    return kept


@given(st.lists(_windows, max_size=12), st.integers(1, 8))
def test_what_is_taken_in_is_never_more_than_there_is(windows: list[Window], capacity: int) -> None:
    kept = _kept(windows, capacity)
    for at in range(-1, 90):
        assert sum(one.gpus for one in kept if one.start <= at < one.end) <= capacity


@given(st.lists(_windows, max_size=12), st.integers(1, 8))
def test_what_is_refused_would_have_been_more_than_there_is(windows: list[Window], capacity: int) -> None:
    kept = list[Window]()
    for one in windows:
        if profile.overbooked(profile.build([*kept, one]), capacity, [one]) is None:
            kept.append(one)
        else:
            beside = [*kept, one]
            times = [at for at in range(-1, 90) if one.start <= at < one.end]
            assert any(sum(each.gpus for each in beside if each.start <= at < each.end) > capacity for at in times)


@given(st.lists(_windows, max_size=8), st.lists(_pods, max_size=25), st.integers(1, 8))
def test_who_is_let_in_never_delays_a_reservation(
    windows: list[Window], pods: list[tuple[str, int, int, int]], capacity: int
) -> None:
    """At any time every owner of an open window can have all that it reserved, at once with all the others."""
    known, holders = profile.build(_kept(windows, capacity)), list[Holder]()
    for number, (space, gpus, since, length) in enumerate(sorted(pods, key=lambda one: one[2])):
        there = [one for one in holders if one.until > since]
        if sum(one.gpus for one in there) + gpus > capacity:
            continue  # no room at all
        asked = _asked(since, since + length, gpus, space)
        if profile.blocker(known, capacity, there, asked) is None:
            holders.append(Holder(uid=str(number), namespace=space, gpus=gpus, until=float(since + length)))
    begun = {str(number): one[2] for number, one in enumerate(sorted(pods, key=lambda one: one[2]))}
    for segment in known.segments:
        for at in range(int(segment.start), int(segment.end)):
            used = profile.used_at((one for one in holders if begun[one.uid] <= at), at)
            assert profile.occupied(segment.reserved(), used) <= capacity


@given(st.lists(_windows, max_size=8))
def test_segments_are_in_order_and_say_what_windows_say(windows: list[Window]) -> None:
    known = profile.build(windows)
    assert all(one.end <= after.start for one, after in zip(known.segments, known.segments[1:], strict=False))
    for at in range(90):
        found = [one for one in known.over(at, math.nextafter(at, math.inf)) if one.start <= at]
        assert sorted(one.key for each in found for one in each.windows) == sorted(
            one.key for one in windows if one.start <= at < one.end
        )


def test_who_ends_before_may_start_and_who_does_not_may_not() -> None:
    known = profile.build([_window(100, 200)])
    assert profile.blocker(known, 4, [], _asked(0, 100)) is None
    assert profile.blocker(known, 4, [], _asked(0, 101)) is not None
    assert profile.blocker(known, 4, [], _asked(0, math.inf, 1)) is not None
    assert profile.blocker(known, 5, [], _asked(0, math.inf, 1)) is None
    assert profile.blocker(known, 4, [], _asked(200, math.inf)) is None


def test_the_owner_is_let_in_at_any_time_and_not_beyond_its_own() -> None:
    known = profile.build([_window(100, 200), _window(100, 200, 2, "speech")])
    assert profile.blocker(known, 6, [], _asked(0, math.inf, 4, "vision")) is None
    assert profile.blocker(known, 6, [], _asked(0, math.inf, 5, "vision")) is not None


def test_what_holds_gpus_and_is_not_known_counts_for_ever() -> None:
    known = profile.build([_window(100, 200)])
    assert profile.blocker(known, 8, [], _asked(0, 150), others=0) is None
    assert profile.blocker(known, 8, [], _asked(0, 150), others=1) is not None


def test_within_its_own_window_a_container_counts_until_its_end() -> None:
    known = profile.build([_window(100, 200), _window(200, 300, 4, "speech", "next")])
    assert profile.may_overrun(known, [], _asked(150, math.inf, 4, "vision")) == 200
    assert profile.may_overrun(known, [], _asked(150, math.inf, 5, "vision")) == math.inf
    assert profile.may_overrun(known, [], _asked(50, math.inf, 4, "vision")) == math.inf


def test_others_reservations_are_named_to_who_may_know_them_alone() -> None:
    (found,) = profile.build([_window(100, 200)]).segments
    seen = profile.words(found, "default", sees_all=True)
    assert seen.startswith("4 GPUs are reserved for vision from Thu 01 Jan 00:01 UTC (reservation night)")
    hidden = profile.words(found, "speech")
    assert hidden.startswith("4 GPUs are reserved from Thu 01 Jan 00:01 UTC: a --timeout")
    assert "vision" not in hidden
    assert "night" not in hidden
