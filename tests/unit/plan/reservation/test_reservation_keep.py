"""Who is warned and ended for a reservation, and which windows are given back."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from fairlead.plan.reservation import keep, profile
from fairlead.plan.reservation.calendar import Window
from fairlead.plan.reservation.keep import Rules, Running
from fairlead.plan.reservation.profile import Holder

_RULES = Rules(warn_s=900, no_show_s=1800)
_KEY = ("vision", "night")


def _window(start: float, end: float, gpus: int = 4, namespace: str = "vision", name: str = "night") -> Window:
    return Window(namespace=namespace, name=name, gpus=gpus, start=start, end=end)


def _running(
    uid: str,
    gpus: int,
    *,
    namespace: str = "root",
    until: float = math.inf,
    started: float = 0.0,
    has_node: bool = True,
) -> Running:
    holder = Holder(uid=uid, namespace=namespace, gpus=gpus, until=until)
    return Running(holder=holder, started=started, has_node=has_node)


def _plan(
    now: float,
    *running: Running,
    windows: tuple[Window, ...] = (_window(10_000, 20_000),),
    rules: Rules = _RULES,
    warned: dict[str, float] | None = None,
    used: tuple[tuple[tuple[str, str], float], ...] = (),
) -> keep.Plan:
    return keep.plan(windows, running, capacity=8, now=now, rules=rules, used=used, warned=warned or {})


def test_who_is_in_the_way_is_warned_in_time_and_ended_at_the_begin() -> None:
    late, early = _running("late", 4, started=50), _running("early", 4, started=10)
    assert _plan(9000, late, early) == keep.Plan(wake_s=60)
    found = _plan(9100, late, early)
    assert [(one.uid, one.at) for one in found.warn] == [("late", 10_000)]
    assert not found.end
    assert not _plan(9999, late, early, warned={"late": 9100}).end
    found = _plan(10_000, late, early, warned={"late": 9100})
    assert [one.uid for one in found.end] == ["late"]
    assert keep.words(found.end[0], is_ended=True).startswith(
        "4 GPUs are reserved for others from Thu 01 Jan 02:46 UTC"
    )


def test_who_is_found_late_has_as_long_all_the_same() -> None:
    found = _plan(10_500, _running("late", 8))
    assert [(one.uid, one.at) for one in found.warn] == [("late", 11_400)]
    assert not found.end
    assert not _plan(11_399, _running("late", 8), warned={"late": 10_500}).end
    assert _plan(11_400, _running("late", 8), warned={"late": 10_500}).end


def test_who_ends_by_then_who_is_within_its_own_and_who_fits_is_left_alone() -> None:
    assert not _plan(9500, _running("short", 8, until=9900)).warn
    assert not _plan(9500, _running("fits", 4)).warn
    assert not _plan(9500, _running("own", 4, namespace="vision"), _running("fits", 4)).warn


def test_where_nobody_is_ended_they_are_told_that() -> None:
    found = _plan(10_500, _running("late", 8), rules=Rules(is_ended=False), warned={})
    assert [one.uid for one in found.warn] == ["late"]
    assert not found.end
    assert "may go on" in keep.words(found.warn[0], is_ended=False)
    assert not _plan(19_000, _running("late", 8), rules=Rules(is_ended=False), warned={"late": 0.0}).end


def test_a_window_that_nobody_wants_is_given_back_and_one_that_was_used_is_not() -> None:
    assert not _plan(11_799).release
    found = _plan(11_800, _running("other", 8), warned={"other": 0.0})
    assert [one.key for one in found.release] == [_KEY]
    assert not found.end
    assert not _plan(11_800, used=((_KEY, 10_000.0),)).release
    assert not _plan(11_800, rules=Rules(no_show_s=0)).release
    waits = _plan(11_800, _running("waits", 4, namespace="vision", has_node=False))
    assert not waits.release
    assert [one.key for one in waits.used] == [_KEY]


def test_it_looks_again_in_time() -> None:
    assert _plan(9080).wake_s == 20
    assert _plan(9990).wake_s == 10
    assert _plan(11_790).wake_s == 10
    assert keep.plan((), (), capacity=8, now=0, rules=_RULES, used=(), warned={}) == keep.Plan()


@given(
    st.lists(
        st.tuples(st.sampled_from(("vision", "speech", "root")), st.integers(1, 8), st.integers(0, 100)), max_size=8
    ),
    st.integers(1, 8),
    st.integers(0, 8),
)
def test_once_those_have_ended_every_owner_has_what_it_reserved(
    pods: list[tuple[str, int, int]], mine: int, theirs: int
) -> None:
    windows = [_window(0, 100, mine)]
    if 0 < theirs <= 8 - mine:
        windows.append(_window(0, 100, theirs, "speech", "other"))
    running = [_running(str(at), gpus, namespace=space, started=begun) for at, (space, gpus, begun) in enumerate(pods)]
    warned = {str(at): -10_000.0 for at in range(len(pods))}
    found = keep.plan(windows, running, capacity=8, now=50, rules=_RULES, used=(), warned=warned)
    gone = {one.uid for one in found.end}
    left = [one.holder for one in running if one.holder.uid not in gone]
    (segment,) = profile.build(windows).segments
    assert profile.occupied(segment.reserved(), profile.used_at(left, 50)) <= 8
