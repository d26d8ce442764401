"""Decides what a budget asks for: whom to tell, whether to refuse, when to stop. Pure.

A budget is for a month of the calendar (UTC). What was told and that it is used up is remembered with the month, so
that a new month begins with nothing told and everything allowed.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

NOTIFY, REFUSE, STOP = ACTIONS = ("notify", "refuse", "stop")
WITHIN, EXCEEDED, STOPPING = ("within", "exceeded", "stopping")
WHOLE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a tenancy may spend in a month, and what happens then."""

    amount: Decimal
    action: str = NOTIFY
    grace_s: float = 0.0
    """Between the end of the budget and the stop of what runs."""
    notify_percent: tuple[int, ...] = (50, 80, WHOLE)
    """Percentages at which a notice is sent, each once a month; sorted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What is remembered of a budget."""

    period: str = ""
    """Month that the rest is about, `2026-11`."""
    spent: Decimal = Decimal(0)
    told: int = 0
    """Highest percentage of which a notice was sent."""
    exceeded_at: float | None = None
    """Unix seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a look at a budget comes to."""

    standing: Standing
    tells: int
    """Percentage of which a notice is due now; 0: none."""
    stops: bool
    """Whether what holds GPUs is to be stopped now."""


def period(now: float) -> str:
    """Return the month of a time."""
    return f"{dt.datetime.fromtimestamp(now, dt.UTC):%Y-%m}"


def begin(now: float) -> float:
    """Return when the month of a time began."""
    first = dt.datetime.fromtimestamp(now, dt.UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return first.timestamp()


def decide(limit: Limit, before: Standing, spent: Decimal, *, now: float) -> Decision:
    """Return what to do where so much is spent of this month. The highest of several percentages gets a notice."""
    if before.period != period(now):
        before = Standing(period=period(now))
    reached = [one for one in limit.notify_percent if spent * WHOLE >= limit.amount * one]
    tells = max((one for one in reached if one > before.told), default=0)
    exceeded_at = None
    if spent >= limit.amount:
        exceeded_at = now if before.exceeded_at is None else before.exceeded_at
    after = Standing(period=before.period, spent=spent, told=max(before.told, tells), exceeded_at=exceeded_at)
    return Decision(standing=after, tells=tells, stops=state(limit, after, now=now) == STOPPING)


def refuses(limit: Limit, found: Standing, *, now: float) -> bool:
    """Return whether new containers are refused."""
    return limit.action in {REFUSE, STOP} and state(limit, found, now=now) != WITHIN


def stops_at(limit: Limit, found: Standing) -> float | None:
    """Return when what runs is stopped; None: it is not."""
    return None if found.exceeded_at is None or limit.action != STOP else found.exceeded_at + limit.grace_s


def state(limit: Limit, found: Standing, *, now: float) -> str:
    """Return how a budget stands: within, exceeded or stopping."""
    if found.period != period(now) or found.exceeded_at is None:
        return WITHIN
    at = stops_at(limit, found)
    return STOPPING if at is not None and now >= at else EXCEEDED
