"""Serves the routes of budgets: what a tenancy may spend in a month."""

from __future__ import annotations

import time
from typing import Annotated, Final

import litestar
from litestar import params, status_codes

from fairlead import errors
from fairlead.serve.accounts.port import Accounts
from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.port import Absent, require
from fairlead.serve.metering.budgets import Budget, Budgets
from fairlead.serve.v1.budgets import view
from fairlead.serve.v1.budgets.view import BudgetList, BudgetRequest, BudgetView
from fairlead.serve.v1.dependencies import Dependencies, Services
from fairlead.serve.v1.tenancies.routes import find_tenancy
from fairlead.wire.fairlead.tenancy import Tenancy

Name = Annotated[str, params.PathParameter(description="name of the tenancy")]


@litestar.put(
    "/v1/tenancies/{name:str}/budget",
    summary="Set a tenancy's budget",
    responses=documented(400, 403, 404, 422, 503),
    tags=["budget"],
)
async def set_budget(services: Dependencies, name: Name, data: params.JSONBody[BudgetRequest]) -> BudgetView:
    """Set what a tenancy may spend in a month, in place of what was set before; it counts within a minute."""
    kept, limit = _kept(services), view.read(data)
    item = await find_tenancy(services, name)
    account = services.principal.account if services.principal else ""
    return _view(services, await kept.put(item.metadata.uid, item.metadata.name, limit, account=account))


@litestar.get(
    "/v1/tenancies/{name:str}/budget",
    summary="Show a tenancy's budget",
    responses=documented(403, 404, 503),
    tags=["budget"],
)
async def show_budget(services: Dependencies, name: Name) -> BudgetView:
    """Return a tenancy's budget, and what is spent of it."""
    kept = _kept(services)
    item = await find_tenancy(services, name)
    if (found := await kept.find(item.metadata.uid)) is None:
        raise _unknown(item.metadata.name)
    return _view(services, found)


@litestar.delete(
    "/v1/tenancies/{name:str}/budget",
    summary="Remove a tenancy's budget",
    responses=documented(403, 404, 503),
    status_code=status_codes.HTTP_204_NO_CONTENT,
    tags=["budget"],
)
async def delete_budget(services: Dependencies, name: Name) -> None:
    """Remove a budget: what it refused is accepted again."""
    kept = _kept(services)
    item = await find_tenancy(services, name)
    if not await kept.delete(item.metadata.uid):
        raise _unknown(item.metadata.name)


@litestar.get(
    "/v1/budgets", dependencies=pages.PAGE, summary="List budgets", responses=documented(403, 503), tags=["budget"]
)
async def list_budgets(services: Dependencies, page: pages.Paged) -> BudgetList:
    """Return the budgets of the tenancies that may be seen, by name."""
    kept = _kept(services)
    uids = {item.metadata.uid for item in (await services.store.list(Tenancy)).items}
    found, following = page.cut(await kept.list(uids), lambda one: (one.tenancy, one.uid))
    return BudgetList(items=tuple(_view(services, one) for one in found), next=following)


ROUTES: Final = (set_budget, show_budget, delete_budget, list_budgets)


def _kept(services: Services) -> Budgets:
    accounts: Accounts | Absent = services.accounts
    return require(accounts).budgets


def _view(services: Services, found: Budget) -> BudgetView:
    return view.view(found, currency=services.backend.metering.pricing.currency, now=time.time())


def _unknown(tenancy: str) -> errors.NotFound:
    hint = f"`fairlead budget set {tenancy} AMOUNT` sets one"
    return errors.NotFound(f'tenancy "{tenancy}" has no budget', reason="BudgetUnknown", hint=hint)
