"""Declares budgets of tenancies, and where they are kept; without the database."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from fairlead.frozen import frozen
from fairlead.plan.metering.budget import Limit, Standing


@frozen
class Budget:
    """The budget of a tenancy."""

    uid: str
    """Of the tenancy."""
    tenancy: str
    limit: Limit
    standing: Standing
    account: str
    """Who set it; empty: root."""
    set_at: float


@frozen
class BudgetNotice:
    """What a webhook receives of a budget."""

    type: str
    """`budget.threshold` or `budget.stopping`."""
    percent: int
    currency: str


class Budgets(Protocol):
    """Budgets, one a tenancy."""

    async def put(self, uid: str, tenancy: str, limit: Limit, *, account: str) -> Budget:
        """Set one, in place of the one that is there; what was reported under another amount is reported again."""
        ...

    async def find(self, uid: str) -> Budget | None:
        """Return one; None: there is none."""
        ...

    async def list(self, uids: Collection[str] | None) -> tuple[Budget, ...]:
        """Return those of tenancies, by name. Args: uids: None: all."""
        ...

    async def delete(self, uid: str) -> bool:
        """Remove one; returns whether there was one."""
        ...

    async def note(self, found: Budget, standing: Standing, notice: BudgetNotice | None) -> None:
        """Write how one stands and, in the same step, what webhooks are told; one that was set again is left alone."""
        ...
