"""Refuses new containers of a tenancy whose budget is used up and says so."""

from __future__ import annotations

import time

from fairlead import errors
from fairlead.plan.metering import budget
from fairlead.plan.tenancy import baseline
from fairlead.serve.admission.context import Context
from fairlead.serve.backend.port import find
from fairlead.serve.metering.budgets import Budget
from fairlead.wire.fairlead.tenancy import Tenancy


async def check(context: Context, namespace: str) -> None:
    """Refuse a new container where its tenancy's budget says so. Raises: Denied (`BudgetExceeded`).

    Where the API on TLS is off there are no budgets.
    """
    if (accounts := find(context.accounts)) is None:
        return
    if (owner := baseline.find_by_namespace(namespace, (await context.store.list(Tenancy)).items)) is None:
        return
    found, now = await accounts.budgets.find(owner.metadata.uid), time.time()
    if found is not None and budget.refuses(found.limit, found.standing, now=now):
        raise _exceeded(found, context.backend.metering.pricing.currency)


def _exceeded(found: Budget, currency: str) -> errors.Denied:
    spent, of = f"{found.standing.spent:f}", f"{found.limit.amount:f} {currency} for {found.standing.period}"
    message = f'tenancy "{found.tenancy}" has spent {spent} of its budget of {of}'
    hint = f"the administrator raises it: `fairlead budget set {found.tenancy} AMOUNT`; or wait for next month"
    return errors.Denied(message, reason="BudgetExceeded", hint=hint)
