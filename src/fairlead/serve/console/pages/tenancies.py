"""Shows tenancies: how each stands, what is used of its quota, who is a member."""

from __future__ import annotations

import urllib.parse
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.port import MemberView
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import amounts, tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.accounts.view import MemberList
from fairlead.serve.v1.quotas.view import QuotaList
from fairlead.serve.v1.tenancies.view import TenancyList, TenancyView

Name = Annotated[str, params.PathParameter()]


@litestar.get("/console/tenancies", include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List tenancies, and quotas of namespaces that are of none."""
    found: tuple[TenancyView, ...] = ()
    absent = ""
    try:
        found = (await visit.api.get(TenancyList, "/v1/tenancies")).items
    except errors.Unauthenticated:
        raise
    except (errors.RequestError, errors.Denied, errors.Unavailable) as error:
        absent = error.message
    quotas = (await visit.api.get(QuotaList, "/v1/quotas")).items if visit.may(Action.TENANCY_READ) else ()
    own = {item.namespace for item in found}
    return visit.page(
        "tenancies",
        items=[(item, amounts.meters(item.quota, item.used)) for item in found],
        quotas=[(item, amounts.meters(item.hard, item.used)) for item in quotas if item.namespace not in own],
        absent=absent,
        tone=tone,
        address=_address,
    )


@litestar.get("/console/tenancies/{name:str}", include_in_schema=False)
async def detail(visit: Visitor, name: Name) -> litestar.Response[bytes]:
    """Show one tenancy."""
    item = await visit.api.get(TenancyView, f"/v1/tenancies/{client.part(name)}")
    return visit.page(
        "tenancy",
        item=item,
        meters=amounts.meters(item.quota, item.used),
        members=await _members(visit, name),
        may_write=visit.may(Action.MACHINE_WRITE),
        here=_address(item.name),
        tone=tone,
    )


async def _members(visit: Visit, name: str) -> tuple[MemberView, ...] | None:
    """Return a tenancy's members; None: there are no accounts here, or they are not the caller's to read."""
    try:
        return (await visit.api.get(MemberList, f"/v1/tenancies/{client.part(name)}/members")).items
    except (errors.Unavailable, errors.Denied):
        return None


async def _change(visit: Visit, body: bytes, name: str, verb: str) -> response.Redirect:
    csrf = visits.form(body).get("csrf", "")
    await visit.api.ask("POST", f"/v1/tenancies/{client.part(name)}:{verb}", csrf=csrf)
    return response.Redirect(_address(name), status_code=303)


@litestar.post("/console/tenancies/{name:str}/suspend", include_in_schema=False)
async def suspend(visit: Visitor, body: params.RawBody, name: Name) -> response.Redirect:
    """Stop its containers and accept no new ones."""
    return await _change(visit, body, name, "suspend")


@litestar.post("/console/tenancies/{name:str}/resume", include_in_schema=False)
async def resume(visit: Visitor, body: params.RawBody, name: Name) -> response.Redirect:
    """Accept containers again."""
    return await _change(visit, body, name, "resume")


ROUTES: Final = (listing, detail, suspend, resume)


def _address(name: str) -> str:
    return f"/console/tenancies/{urllib.parse.quote(name, safe='')}"
