"""Describes usage of GPUs; without the web framework."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Final

import msgspec

from fairlead import errors
from fairlead.plan.metering import price
from fairlead.plan.metering.price import Pricing
from fairlead.plan.metering.usage import MICROS, Charge
from fairlead.plan.pod import userrule
from fairlead.serve.api import moment
from fairlead.serve.backend import account
from fairlead.wire.text import timestamp

LONGEST_S: Final = 400 * 86400
"""The longest period of one report."""

_Key = Callable[[Charge, Mapping[str, str]], str]


def _user(namespace: str) -> str:
    """Return the account of this machine whose namespace it is; empty: it is not a user's."""
    return account.owner(namespace) or (namespace if userrule.uid_of(namespace) is not None else "")


KEYS: Final[Mapping[str, _Key]] = {
    "tenancy": lambda one, tenancies: tenancies.get(one.namespace, one.namespace),
    "namespace": lambda one, _: one.namespace,
    "user": lambda one, _: _user(one.namespace),
    "model": lambda one, _: one.model,
    "gpu": lambda one, _: one.gpu,
    "node": lambda one, _: one.node,
    "lease": lambda one, _: one.lease,
    "day": lambda one, _: dt.datetime.fromtimestamp(one.begin // MICROS, dt.UTC).date().isoformat(),
}
"""What usage can be added up by."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was held by one group."""

    group: Annotated[Mapping[str, str], msgspec.Meta(description="value of each key of `group_by`; empty: not known")]
    gpu_seconds: Annotated[float, msgspec.Meta(description="a GPU shared by several counts in parts")]
    cost: Annotated[str, msgspec.Meta(description="decimal, in the report's currency")]
    unpriced_seconds: Annotated[float, msgspec.Meta(description="part of gpu_seconds on GPUs without a price")]


class UsageReport(msgspec.Struct, frozen=True, kw_only=True):
    """Who held GPUs for how long in a period, and what that costs."""

    since: Annotated[str, msgspec.Meta(description="begin of the period")]
    until: Annotated[str, msgspec.Meta(description="end of the period, exclusive")]
    currency: str
    items: Annotated[tuple[UsageRow, ...], msgspec.Meta(description="the largest first")]
    total: UsageRow
    unattributed_seconds: Annotated[float, msgspec.Meta(description="held by no known container; not charged")]
    notes: Annotated[tuple[str, ...], msgspec.Meta(description="what could not be counted as it stands")]


class GPUCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What all tenancies together are charged of one GPU."""

    gpu: str
    charged_seconds: float
    wall_seconds: Annotated[float, msgspec.Meta(description="how long the period is")]
    excess_seconds: Annotated[float, msgspec.Meta(description="charged beyond each hour's length; 0: none")]


class UsageCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Whether charges hold against the clock."""

    since: str
    until: str
    items: tuple[GPUCheck, ...]
    notes: Annotated[tuple[str, ...], msgspec.Meta(description="what could not be counted as it stands")]


def read_keys(text: str) -> tuple[str, ...]:
    """Return the words of `group_by`. Raises: RequestError (`GroupUnknown`)."""
    words = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    if unknown := [one for one in words if one not in KEYS]:
        message = f'usage is not added up by "{unknown[0]}"'
        raise errors.RequestError(message, reason="GroupUnknown", hint=f"one or more of {', '.join(KEYS)}")
    return words


def read_period(since: str | None, until: str | None, *, now: float) -> tuple[int, int]:
    """Return a period in microseconds since 1970: from the first of this month (UTC) to now where nothing is given.

    Raises: RequestError (`PeriodInvalid`).
    """
    end = now if until is None else moment.read("until", until)
    first = dt.datetime.fromtimestamp(end, dt.UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begin = first.timestamp() if since is None else moment.read("since", since)
    if not 0 < end - begin <= LONGEST_S:
        message = f"a period from {timestamp.emit(begin)} to {timestamp.emit(end)} is not one"
        hint = "`until` comes after `since`, and at most 400 days"
        raise errors.RequestError(message, reason="PeriodInvalid", hint=hint)
    return round(begin * MICROS), round(end * MICROS)


class _Sum:
    """Adds up charges."""

    def __init__(self) -> None:
        self.amount = self.unpriced = 0
        self.cost = Decimal(0)

    def add(self, one: Charge, hourly: Decimal | None) -> None:
        self.amount += one.amount
        if hourly is None:
            self.unpriced += one.amount
        else:
            self.cost += price.cost(hourly, one.amount)

    def row(self, group: Mapping[str, str]) -> UsageRow:
        return UsageRow(
            group=group,
            gpu_seconds=self.amount / MICROS,
            cost=f"{self.cost:f}",
            unpriced_seconds=self.unpriced / MICROS,
        )


def add_up(
    charges: Iterable[Charge], keys: Sequence[str], pricing: Pricing, tenancies: Mapping[str, str]
) -> tuple[tuple[UsageRow, ...], UsageRow]:
    """Return rows, the largest first, and the sum of all."""
    sums: dict[tuple[str, ...], _Sum] = {}
    whole = _Sum()
    prices: dict[str, Decimal | None] = {}
    for one in charges:
        if one.model not in prices:
            found = pricing.find(one.model)
            prices[one.model] = found.hourly if found is not None else None
        group = tuple(KEYS[key](one, tenancies) for key in keys)
        for each in (sums.setdefault(group, _Sum()), whole):
            each.add(one, prices[one.model])
    order = sorted(sums.items(), key=lambda item: (-item[1].amount, item[0])) if keys else ()
    return tuple(one.row(dict(zip(keys, group, strict=True))) for group, one in order), whole.row({})
