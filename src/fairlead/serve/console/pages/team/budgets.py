"""Shows budgets: what tenancies may spend in a month, what they have spent, and what happens when it is used up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.plan.metering import budget
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.budgets.view import BudgetList, BudgetView
from fairlead.serve.v1.tenancies.view import TenancyList

Name = Annotated[str, params.PathParameter()]
_HOUR_S: Final = 3600.0
_ACTIONS: Final[Mapping[str, str]] = {
    budget.NOTIFY: "tell webhooks",
    budget.REFUSE: "accept no new containers",
    budget.STOP: "stop what holds GPUs, after the grace",
}


@litestar.get("/console/budgets", include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List budgets."""
    return await _page(visit)


@litestar.post("/console/budgets", include_in_schema=False)
async def keep(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Set a tenancy's budget in place of the one before."""
    fields = visits.form(body)
    answer = await visits.tried(_keep(visit, fields))
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, fields=fields, error=answer)
    return response.Redirect("/console/budgets", status_code=303)


@litestar.post("/console/budgets/{name:str}/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody, name: Name) -> response.Redirect:
    """Remove a tenancy's budget."""
    path = f"/v1/tenancies/{client.part(name)}/budget"
    await visit.api.ask("DELETE", path, csrf=visits.form(body).get("csrf", ""))
    return response.Redirect("/console/budgets", status_code=303)


ROUTES: Final = (listing, keep, remove)


async def _keep(visit: Visit, fields: Mapping[str, str]) -> None:
    path = f"/v1/tenancies/{client.part(fields.get('tenancy', ''))}/budget"
    wanted = {
        "amount": fields.get("amount", "").strip(),
        "action": fields.get("action", ""),
        "grace_s": _number(fields.get("grace_hours", "") or "1") * _HOUR_S,
    }
    await visit.api.ask("PUT", path, body=wanted, csrf=fields.get("csrf", ""))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        message = f'grace "{errors.readable(text[:40])}" is not a number of hours'
        raise errors.Invalid(message, reason="BudgetInvalid", hint="for example 1 or 0.5") from error


def _tone(one: BudgetView) -> str:
    return "bad" if one.exceeded_at else "warn" if one.percent >= max(one.notify_percent, default=100) else "good"


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    may_write, items, absent = visit.may(Action.MACHINE_WRITE), tuple[BudgetView, ...](), None
    tenancies: list[str] = []
    try:
        items = (await visit.api.get(BudgetList, "/v1/budgets")).items
        if may_write:
            tenancies = [item.name for item in (await visit.api.get(TenancyList, "/v1/tenancies")).items]
    except errors.Unauthenticated:
        raise
    except (errors.RequestError, errors.Unavailable) as problem:
        absent = problem
    return visit.page(
        "budgets",
        items=[(one, _tone(one)) for one in items],
        absent=absent,
        error=error,
        fields=fields or {},
        tenancies=tenancies,
        actions=_ACTIONS,
        may_write=may_write,
        tone=tone,
    )
