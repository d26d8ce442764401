"""Counts how many GPUs are reserved for whom over time, and says who may start beside that. Pure.

At any time the GPUs of a namespace count as the larger of what it reserved and what its containers hold; the sum over
all namespaces must not be above what there is. Containers only end between two begins of windows, so it is enough to
look at the begins. What runs without a limit counts as long as `Terms.open_ended_s` says, or for ever.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

from fairlead.frozen import frozen
from fairlead.plan.reservation.calendar import Window, says


@frozen
class Segment:
    """A time in which the same windows are open, at least one."""

    start: float
    end: float
    windows: tuple[Window, ...]

    def reserved(self) -> Counter[str]:
        """Return GPUs by namespace."""
        found = Counter[str]()
        for one in self.windows:
            found[one.namespace] += one.gpus
        return found


@frozen
class Holder:
    """A container that has GPUs."""

    uid: str
    namespace: str
    gpus: int
    until: float
    """When it has ended at the latest, Unix seconds; infinite: it has no limit."""
    reservation: str = ""
    """Which one of its namespace it was started in (`run --reservation`); empty: it named none."""


@frozen
class Profile:
    """The segments, by their begin; they do not overlap."""

    segments: tuple[Segment, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.segments)

    def over(self, since: float, until: float) -> Iterator[Segment]:
        """Yield the segments that a span meets."""
        at = bisect.bisect_right(self.segments, since, key=lambda one: one.end)
        for one in self.segments[at:]:
            if one.start >= until:
                return
            yield one

    def after(self, now: float) -> Profile:
        """Return it without the segments that are over."""
        at = bisect.bisect_right(self.segments, now, key=lambda one: one.end)
        return Profile(segments=self.segments[at:]) if at else self

    def next_change(self, now: float) -> float:
        """Return when the next window begins or ends; infinite: none does."""
        at = bisect.bisect_right(self.segments, now, key=lambda one: one.end)
        if at == len(self.segments):
            return math.inf
        one = self.segments[at]
        return one.start if one.start > now else one.end


NONE: Final = Profile()


def build(windows: Iterable[Window]) -> Profile:
    """Return the profile of windows."""
    found = sorted(windows, key=lambda one: (one.start, one.end, one.key))
    times = sorted({time for one in found for time in (one.start, one.end)})
    segments, opened, at = list[Segment](), list[Window](), 0
    for start, end in itertools.pairwise(times):
        opened = [one for one in opened if one.end > start]
        while at < len(found) and found[at].start == start:
            opened.append(found[at])
            at += 1
        if opened:
            segments.append(Segment(start=start, end=end, windows=tuple(opened)))
    return Profile(segments=tuple(segments))


def overbooked(profile: Profile, capacity: int, among: Collection[Window]) -> Segment | None:
    """Return the first time at which more is reserved than there is, and some of `among` is open; None: there is none.

    Args: among: the windows that are asked for.
    """
    keys = {one.key for one in among}
    for one in profile.segments:
        is_asked = any(each.key in keys for each in one.windows)
        if is_asked and sum(each.gpus for each in one.windows) > capacity:
            return one
    return None


def occupied(reserved: Mapping[str, int], used: Mapping[str, int]) -> int:
    """Return how many GPUs count as taken: of each namespace the larger of the two."""
    return sum(max(reserved.get(name, 0), used.get(name, 0)) for name in {**reserved, **used})


def used_at(holders: Iterable[Holder], at: float) -> Counter[str]:
    """Return the GPUs that are held at a time, by namespace."""
    found = Counter[str]()
    for one in holders:
        if one.until > at:
            found[one.namespace] += one.gpus
    return found


@frozen
class Asked:
    """A container that is to start."""

    namespace: str
    gpus: int
    since: float
    until: float
    """As `Holder.until`."""
    reservation: str = ""
    """As `Holder.reservation`."""


def may_overrun(profile: Profile, holders: Collection[Holder], asked: Asked) -> float:
    """Return until when a container counts that starts within its own reservation: that one's end; else its own end.

    What goes on after its reservation is ended for the next one, where overrunning containers are.
    """
    now = next(profile.over(asked.since, math.nextafter(asked.since, math.inf)), None)
    if now is None or now.start > asked.since:
        return asked.until
    mine = used_at(holders, asked.since)[asked.namespace] + asked.gpus
    if mine > now.reserved()[asked.namespace]:
        return asked.until
    return min(asked.until, max(one.end for one in now.windows if one.namespace == asked.namespace))


def blocker(
    profile: Profile, capacity: int, holders: Collection[Holder], asked: Asked, *, others: int = 0
) -> Segment | None:
    """Return the first time at which reservations leave no room for a container; None: it may start.

    Args: others: GPUs that are held by what is not among `holders`, for as long as anybody knows.
    """
    for one in profile.over(asked.since, asked.until):
        reserved, used = one.reserved(), used_at(holders, max(one.start, asked.since))
        before = occupied(reserved, used)
        used[asked.namespace] += asked.gpus
        after = occupied(reserved, used)
        if after > before and after + others > capacity:
            return one
    return None


WORDS: Final = "reserved: "
"""Begins a reason of the scheduler's."""
_LISTED: Final = 2


def words(found: Segment, reader: str, *, sees_all: bool = False) -> str:
    """Return what a container waits for, as its owner may know it.

    Args: reader: namespace of the container.   sees_all: whether it may know whose the others' are.
    """
    theirs = [one for one in found.windows if one.namespace != reader] or [*found.windows]
    total, first = sum(one.gpus for one in theirs), min(theirs, key=lambda one: one.start)
    named = [one for one in theirs if sees_all or one.namespace == reader]
    whose = sorted({one.namespace for one in named})[:_LISTED]
    whom = f" for {' and '.join(whose)}" if len(named) == len(theirs) else ""
    which = f" (reservation {' and '.join(one.name for one in named[:_LISTED])})" if named else ""
    be = "GPU is" if total == 1 else "GPUs are"
    said = f"{total} {be} reserved{whom} from {says(first.start, first.zone)}{which}"
    return f"{said}: a --timeout until then lets it run"
