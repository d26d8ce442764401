"""Describes budgets; without the web framework."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Final

import msgspec

from fairlead import errors
from fairlead.plan.metering import budget
from fairlead.plan.metering.budget import Limit
from fairlead.serve.metering.budgets import Budget
from fairlead.wire.fairlead import listing
from fairlead.wire.text import timestamp

_AMOUNT: Final = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?", re.ASCII)
_MOST: Final = 10
_LARGEST: Final = 1000


class BudgetRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A budget to set."""

    amount: Annotated[str, msgspec.Meta(description="for a month (UTC), decimal, in the prices' currency")]
    action: Annotated[
        str,
        msgspec.Meta(
            description="once it is used up: notify tells webhooks; refuse accepts nothing new as well; stop also ends "
            "what holds GPUs, after the grace"
        ),
    ] = budget.NOTIFY
    grace_s: Annotated[float, msgspec.Meta(ge=0, le=31 * 86400, description="with stop: wait before it")] = 3600.0
    notify_percent: Annotated[
        tuple[int, ...], msgspec.Meta(description="percentages that are told, each once a month")
    ] = (
        50,
        80,
        100,
    )


class BudgetView(msgspec.Struct, frozen=True, kw_only=True):
    """The budget of a tenancy, as it stood at the last look, which is made once a minute."""

    tenancy: str
    amount: Annotated[str, msgspec.Meta(description="for a month, decimal")]
    currency: str
    action: Annotated[str, msgspec.Meta(description="notify, refuse or stop")]
    grace_s: float
    notify_percent: tuple[int, ...]
    period: Annotated[str, msgspec.Meta(description="month, `2026-11`")]
    spent: Annotated[str, msgspec.Meta(description="in that month, decimal")]
    percent: Annotated[float, msgspec.Meta(description="of the amount")]
    state: Annotated[str, msgspec.Meta(description="within, exceeded or stopping")]
    exceeded_at: Annotated[str | None, msgspec.Meta(description="when it was found used up; null: it is not")]
    stops_at: Annotated[str | None, msgspec.Meta(description="when what holds GPUs is stopped; null: it is not")]
    account: Annotated[str, msgspec.Meta(description="who set it; empty: root")]
    set_at: str


class BudgetList(msgspec.Struct, frozen=True, kw_only=True):
    """Budgets."""

    items: tuple[BudgetView, ...]
    next: listing.Next = ""


def read(data: BudgetRequest) -> Limit:
    """Return what a request asks for. Raises: Invalid (`BudgetInvalid`)."""
    if not _AMOUNT.fullmatch(data.amount) or not Decimal(data.amount):
        raise _invalid(f'amount "{errors.readable(data.amount[:40])}"', "a number above 0 with at most six decimals")
    if data.action not in budget.ACTIONS:
        raise _invalid(f'action "{errors.readable(data.action[:40])}"', f"one of {', '.join(budget.ACTIONS)}")
    if len(data.notify_percent) > _MOST or any(not 0 < one <= _LARGEST for one in data.notify_percent):
        raise _invalid("notify_percent", f"at most {_MOST} percentages from 1 to {_LARGEST}")
    return Limit(
        amount=Decimal(data.amount),
        action=data.action,
        grace_s=data.grace_s,
        notify_percent=tuple(sorted(set(data.notify_percent))),
    )


def _invalid(what: str, form: str) -> errors.Invalid:
    return errors.Invalid(f"{what} is not {form}", reason="BudgetInvalid", hint="for example 500, stop, 50,80,100")


def view(found: Budget, *, currency: str, now: float) -> BudgetView:
    """Describe a budget; of a month that is over nothing is shown."""
    month = budget.period(now)
    standing = found.standing if found.standing.period == month else budget.Standing(period=month)
    at = budget.stops_at(found.limit, standing)
    return BudgetView(
        tenancy=found.tenancy,
        amount=f"{found.limit.amount:f}",
        currency=currency,
        action=found.limit.action,
        grace_s=found.limit.grace_s,
        notify_percent=found.limit.notify_percent,
        period=standing.period,
        spent=f"{standing.spent:f}",
        percent=round(float(standing.spent / found.limit.amount * budget.WHOLE), 1),
        state=budget.state(found.limit, standing, now=now),
        exceeded_at=None if standing.exceeded_at is None else timestamp.emit(standing.exceeded_at),
        stops_at=None if at is None else timestamp.emit(at),
        account=found.account,
        set_at=timestamp.emit(found.set_at),
    )
