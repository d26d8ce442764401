"""Says how finely and how long figures are kept, and which of it answers a question. Pure.

Figures are kept at three resolutions. A question names a period and a step; it is answered from the coarsest resolution
that is fine enough, and its newest part, which is not summed up yet, from the finer ones.
"""

from __future__ import annotations

from typing import Final

from fairlead import errors
from fairlead.frozen import frozen

DAY_S: Final = 86400


@frozen
class Tier:
    """One resolution."""

    number: int
    step_s: int
    keep_s: int
    """At most, whatever the setting says."""


TIERS: Final = (
    Tier(number=0, step_s=10, keep_s=2 * 3600),
    Tier(number=1, step_s=60, keep_s=2 * DAY_S),
    Tier(number=2, step_s=600, keep_s=400 * DAY_S),
)
"""The finest first; each step is a multiple of the one before."""
FINEST_S: Final = TIERS[0].step_s
COARSEST_S: Final = 7 * DAY_S
STEPS: Final = (10, 30, 60, 120, 300, 600, 1800, 3600, 10800, 21600, DAY_S, COARSEST_S)
"""Steps in seconds that are chosen where none is asked for."""
SHOWN: Final = 360
"""Points at most where no step is asked for."""
MOST: Final = 2000
"""Points of one answer."""
LONGEST_S: Final = 400 * DAY_S


@frozen
class Window:
    """The period of one answer: `count` buckets of `step_s` seconds from `begin` on."""

    begin: int
    step_s: int
    count: int
    tier: int
    """Number of the coarsest resolution that may answer it."""

    @property
    def end(self) -> int:
        """Where the last bucket ends, in Unix seconds."""
        return self.begin + self.count * self.step_s


def keep_s(tier: Tier, days: float) -> int:
    """Return how long a resolution is kept, in seconds. Args: days: of the setting."""
    return int(min(tier.keep_s, days * DAY_S))


def floor(at: float, step_s: int) -> int:
    """Return where the bucket of a moment begins."""
    return int(at // step_s) * step_s


def choose(since: float, until: float, step_s: int | None, *, now: float, days: float) -> Window:
    """Return the buckets that answer a question.

    Args:    since, until: Unix seconds.   step_s: as asked for; None: one that a person can read.
             days: how long figures are kept.
    Raises:  RequestError (`PeriodInvalid`, `StepInvalid`).
    """
    if not 0 < until - since <= LONGEST_S or since < 0:
        message = "since: the period is empty, or longer than 400 days"
        hint = "`since` comes before `until`: 1h, 2026-11-01T00:00:00Z"
        raise errors.RequestError(message, reason="PeriodInvalid", hint=hint)
    finest = _finest(since, now, days)
    if step_s is None:
        step_s = next((one for one in STEPS if one >= finest.step_s and (until - since) / one <= SHOWN), COARSEST_S)
    elif not FINEST_S <= step_s <= COARSEST_S or step_s % FINEST_S:
        message = f"step: {step_s} is not a multiple of {FINEST_S} seconds from {FINEST_S} to {COARSEST_S}"
        raise errors.RequestError(message, reason="StepInvalid", hint="leave it out, or give 60 or 600")
    elif (until - since) / step_s > MOST:
        least = next(one for one in STEPS if (until - since) / one <= MOST)
        message = f"step: {step_s} s makes more than {MOST} points of this period"
        raise errors.RequestError(message, reason="StepInvalid", hint=f"step={least}, or a later `since`")
    else:
        step_s = max(step_s, finest.step_s)
        step_s += -step_s % finest.step_s
    begin = floor(since, step_s)
    last = max(begin + step_s, floor(until - 1e-6, step_s) + step_s)
    fits = [one.number for one in TIERS if not step_s % one.step_s]
    return Window(begin=begin, step_s=step_s, count=(last - begin) // step_s, tier=max(finest.number, fits[-1]))


def _finest(since: float, now: float, days: float) -> Tier:
    """Return the finest resolution that reaches back to a moment, the coarsest where none does."""
    return next((one for one in TIERS if since >= now - keep_s(one, days) - one.step_s), TIERS[-1])
