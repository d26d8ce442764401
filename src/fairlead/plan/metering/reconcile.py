"""Checks charges against the clock: all tenants together are not charged more of a GPU than time went by. Pure.

Every charge lies within one hour of the clock, so the hour is the finest measure there is: what is charged of a GPU in
an hour, over all tenancies, must not be longer than the part of the hour that lies in the period.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from fairlead.plan.metering.usage import HOUR, Charge


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciled:
    """What was charged of one GPU. Times are microseconds."""

    gpu: str
    charged: int
    wall: int
    """How long the period is."""
    excess: int
    """By how much hours of it are charged beyond their length, added up; 0: it holds."""


def reconcile(charges: Iterable[Charge], *, begin: int, end: int) -> tuple[Reconciled, ...]:
    """Return each GPU's sum over all tenancies, by GPU. Args: begin, end: of the period that was charged."""
    hours: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for one in charges:
        hours[one.gpu][one.begin // HOUR] += one.amount
    return tuple(
        Reconciled(
            gpu=gpu,
            charged=sum(found.values()),
            wall=end - begin,
            excess=sum(max(0, amount - _length(hour, begin, end)) for hour, amount in found.items()),
        )
        for gpu, found in sorted(hours.items())
    )


def _length(hour: int, begin: int, end: int) -> int:
    """Return how long the part of an hour is that lies within the period."""
    return max(0, min((hour + 1) * HOUR, end) - max(hour * HOUR, begin))
