"""Says what is to be done so that reservations are kept: who is warned or ended, what is given back. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final

from fairlead.frozen import frozen
from fairlead.plan.reservation import calendar, profile
from fairlead.plan.reservation.calendar import Window
from fairlead.plan.reservation.profile import Holder, Profile, Segment

POLL_S: Final = 60.0
"""How often the clock is looked at, since it may jump."""


@frozen
class Running:
    """A container that has GPUs, or wants them."""

    holder: Holder
    started: float
    """Unix seconds; 0: it has not."""
    has_node: bool
    is_ending: bool = False


@frozen
class Notice:
    """What is said to a container's owner, or done."""

    uid: str
    window: Window
    at: float
    """When it is ended at the earliest."""
    others: int
    """GPUs that are reserved then, for others."""


@frozen
class Plan:
    """What is to be done now."""

    warn: tuple[Notice, ...] = ()
    end: tuple[Notice, ...] = ()
    used: tuple[Window, ...] = ()
    """Windows that are used from now on."""
    release: tuple[Window, ...] = ()
    """Windows that are given back."""
    wake_s: float | None = None


@frozen
class Rules:
    """The settings, in seconds."""

    is_ended: bool = True
    warn_s: float = 900
    no_show_s: float = 1800
    """0: no window is given back."""


def plan(
    windows: Collection[Window],
    running: Collection[Running],
    *,
    capacity: int,
    now: float,
    rules: Rules,
    used: Collection[tuple[tuple[str, str], float]],
    warned: Mapping[str, float],
) -> Plan:
    """Return what is to be done.

    Args: windows: those that are open or ahead.   used: key and begin of windows in which GPUs were wanted.
          warned: by uid: when the owner of a container was warned; it ends `rules.warn_s` later at the earliest.
    """
    known = profile.build(windows).after(now)
    if not known:
        return Plan()
    made_use = tuple(one for one in windows if one.start <= now < one.end and _is_wanted(one, running))
    seen = {(one.key, one.start) for one in made_use} | set(used)
    released = tuple(
        one
        for one in windows
        if rules.no_show_s and one.start + rules.no_show_s <= now < one.end and (one.key, one.start) not in seen
    )
    if released:  # what is given back is in nobody's way
        gone = {(one.key, one.start) for one in released}
        known = profile.build(one for one in windows if (one.key, one.start) not in gone).after(now)
    warn, end, times = list[Notice](), list[Notice](), list[float]()
    leaving = set[str]()
    for one in known.over(now, now + rules.warn_s + 1):
        for found in _in_the_way(one, running, capacity, now, leaving):
            notice = dataclasses.replace(found, at=max(one.start, warned.get(found.uid, now) + rules.warn_s))
            if notice.uid not in warned:
                warn.append(notice)
            if not rules.is_ended:
                continue
            if notice.at <= now:
                end.append(notice)
            else:
                times.append(notice.at)
    times += _times(known, windows, now, rules)
    due = min((time for time in times if time > now), default=math.inf)
    return Plan(
        warn=tuple(warn),
        end=tuple(end),
        used=tuple(one for one in made_use if (one.key, one.start) not in used),
        release=released,
        wake_s=min(POLL_S, max(0.5, due - now)),
    )


def _is_wanted(window: Window, running: Collection[Running]) -> bool:
    return any(one.holder.namespace == window.namespace for one in running)


def _in_the_way(
    found: Segment, running: Collection[Running], capacity: int, now: float, leaving: set[str]
) -> list[Notice]:
    """Return the containers that have to end for a segment: those that began last, of who holds beyond their own.

    Args: leaving: those of segments before; they count as ended, and the new ones are added.
    """
    at = max(found.start, now)
    there = [
        one
        for one in running
        if one.has_node and not one.is_ending and one.holder.until > at and one.holder.uid not in leaving
    ]
    reserved, used = found.reserved(), profile.used_at((one.holder for one in there), at)
    chosen = list[Notice]()
    for one in sorted(there, key=lambda each: (-each.started, each.holder.uid)):
        excess = profile.occupied(reserved, used) - capacity
        if excess <= 0:
            break
        mine = one.holder
        less = Counter(used)
        less[mine.namespace] -= mine.gpus
        if profile.occupied(reserved, less) >= profile.occupied(reserved, used):
            continue  # within what its own namespace reserved
        used = less
        leaving.add(mine.uid)
        theirs = [each for each in found.windows if each.namespace != mine.namespace] or [*found.windows]
        chosen.append(Notice(uid=mine.uid, window=theirs[0], at=found.start, others=sum(each.gpus for each in theirs)))
    return chosen


def _times(known: Profile, windows: Collection[Window], now: float, rules: Rules) -> list[float]:
    """Return when something is to be looked at: begins and ends, warnings before them, and who does not come."""
    times = [known.next_change(now)]
    times += [one.start - rules.warn_s for one in known.over(now, now + rules.warn_s + POLL_S)]
    if rules.no_show_s:
        times += [one.start + rules.no_show_s for one in windows if one.start <= now < one.end]
    return times


def words(notice: Notice, *, is_ended: bool) -> str:
    """Return what is said to the owner of a container that is in the way; whose the reservation is, is not."""
    be = "GPU is" if notice.others == 1 else "GPUs are"
    zone = notice.window.zone
    said = f"{notice.others} {be} reserved for others from {calendar.says(notice.window.start, zone)}"
    if not is_ended:
        return f"{said}, and it holds some of them: it may go on (reserve.overrun=wait)"
    return f"{said}, and it holds some of them: it is ended {calendar.says(notice.at, zone)}"
