"""Declares what is measured of GPUs: who held them, in a period, and what it costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from fairlead.plan.metering.price import Pricing
from fairlead.plan.metering.usage import Charge


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What was held in a period, and what is to be said of it."""

    charges: Iterable[Charge]
    """Of containers that are known, made as they are read; once."""
    unattributed: int
    """Microseconds of GPUs that were held and of which no container is known: charged to no one."""
    notes: tuple[str, ...]
    """Sentences for a person: what could not be counted as it stands."""
    tenancies: Mapping[str, str]
    """Names of tenancies by namespace."""


class Metering(Protocol):
    """What was held of GPUs, and by whom."""

    async def measure(self, *, begin: int, end: int) -> Measured:
        """Return charges of a period, in microseconds since 1970.

        Raises: NotFound (`NoLeases`): nothing is written down here.
        """
        ...

    @property
    def pricing(self) -> Pricing:
        """What it costs."""
        ...
