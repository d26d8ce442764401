"""Shows tenancies: how each stands, what is used of its quota, who is a member; makes, changes and deletes them."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.port import MemberView
from fairlead.serve.accounts.roles import Action, Role
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import amounts, limits, tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.accounts.view import MemberList
from fairlead.serve.v1.quotas.view import QuotaList
from fairlead.serve.v1.tenancies.view import TenancyList, TenancyView
from fairlead.wire.fairlead import tenancy
from fairlead.wire.nvidia.pluginconfig import GPU_RESOURCE

Name = Annotated[str, params.PathParameter()]


_ALL: Final = "/console/tenancies"
_IN_FORCE_S: Final = 2.0
"""Seconds for which a form's answer waits until new limits are in force."""
_QUOTA: Final[Mapping[str, str]] = {"gpus": GPU_RESOURCE, "containers": "pods", "cpus": "cpu", "memory": "memory"}
"""Fields of the form that are limits, and the resources that they limit."""
_NETWORKS: Final[Mapping[str, str]] = {
    "open": "own, with Internet",
    "closed": "own, no Internet",
    "none": "none",
}
_PARTS: Final[Mapping[str, str]] = {
    "NamespaceReady": "Namespace",
    "QuotaApplied": "Quota",
    "NetworkIsolated": "Network",
    "VolumesMounted": "Volumes",
    "Ready": "Tenancy",
    "Made": "made",
    "Applied": "in force",
    "NoQuota": "no limits",
    "NoNetwork": "none, so nothing is reached",
    "Isolated": "isolated",
    "NotYet": "not yet",
}
"""Conditions of a tenancy and their reasons, as people say them."""
_SANDBOXES: Final[Mapping[str, str]] = {"": "as each container asks", "gvisor": "gVisor", "none": "none"}


@litestar.get(_ALL, include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List tenancies, and quotas of namespaces that are of none."""
    return await _page(visit)


@litestar.post(_ALL, include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Make a tenancy."""
    fields = visits.form(body)
    network = fields.get("network", "open")
    wanted = {
        "name": fields.get("name", "").strip(),
        "display_name": fields.get("display_name", "").strip(),
        "quota": {key: fields[one].strip() for one, key in _QUOTA.items() if fields.get(one, "").strip()},
        "mode": tenancy.NONE if network == "none" else tenancy.BRIDGE,
        "internet": tenancy.ALLOW if network == "open" else tenancy.DENY,
        "isolation": fields.get("isolation", ""),
    }
    answer = await visits.tried(visit.api.ask("POST", "/v1/tenancies", body=wanted, csrf=fields.get("csrf", "")))
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, fields=fields, error=answer)
    return response.Redirect(_address(answer.value(TenancyView).name), status_code=303)


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    found: tuple[TenancyView, ...] = ()
    absent = ""
    try:
        found = (await visit.api.get(TenancyList, "/v1/tenancies")).items
    except errors.Unauthenticated:
        raise
    except (errors.RequestError, errors.Denied, errors.Unavailable) as problem:
        absent = problem.message
    quotas = (await visit.api.get(QuotaList, "/v1/quotas")).items if visit.may(Action.TENANCY_READ) else ()
    own = {item.namespace for item in found}
    return visit.page(
        "tenancies",
        items=[(item, amounts.meters(item.quota, item.used)) for item in found],
        quotas=[(item, amounts.meters(item.hard, item.used)) for item in quotas if item.namespace not in own],
        absent=absent,
        may_write=visit.may(Action.MACHINE_WRITE) and not absent,
        fields=fields or {},
        error=error,
        networks=_NETWORKS,
        sandboxes=_SANDBOXES,
        tone=tone,
        address=_address,
    )


@litestar.get("/console/tenancies/{name:str}", include_in_schema=False)
async def detail(visit: Visitor, name: Name) -> litestar.Response[bytes]:
    """Show one tenancy."""
    return await _one(visit, name)


async def _one(
    visit: Visit,
    name: str,
    *,
    fields: Mapping[str, str] | None = None,
    limited: Mapping[str, str] | None = None,
    problems: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    item = await visit.api.get(TenancyView, f"/v1/tenancies/{client.part(name)}")
    resource = await visit.resource()
    now = {**limits.filled(item.quota, resource), "display_name": item.display_name}
    return visit.page(
        "tenancy",
        item=item,
        meters=amounts.meters(item.quota, item.used),
        members=await _members(visit, name),
        may_write=visit.may(Action.MACHINE_WRITE),
        may_members=item.name in await visit.tenancies(Action.MEMBER_WRITE),
        roles=tuple(Role),
        parts=_PARTS,
        limits=limits.fields(resource),
        limited=now if limited is None else limited,
        is_open=limited is not None,
        problems=problems or {},
        code=422 if problems else None,
        fields=fields or {},
        error=error,
        here=_address(item.name),
        tone=tone,
    )


async def _members(visit: Visit, name: str) -> tuple[MemberView, ...] | None:
    """Return a tenancy's members; None: there are no accounts here, or the caller may not read them."""
    try:
        return (await visit.api.get(MemberList, f"/v1/tenancies/{client.part(name)}/members")).items
    except (errors.Unavailable, errors.Denied):
        return None


async def _change(visit: Visit, body: bytes, name: str, verb: str) -> response.Redirect:
    csrf = visits.form(body).get("csrf", "")
    await visit.api.ask("POST", f"/v1/tenancies/{client.part(name)}:{verb}", csrf=csrf)
    return response.Redirect(_address(name), status_code=303)


@litestar.post("/console/tenancies/{name:str}/limits", include_in_schema=False)
async def limit(visit: Visitor, body: params.RawBody, name: Name) -> litestar.Response[bytes] | response.Redirect:
    """Change a tenancy's limits and its name for people; containers that run go on."""
    fields = visits.form(body)
    path = f"/v1/tenancies/{client.part(name)}"
    before = (await visit.api.get(TenancyView, path)).quota
    asked = limits.read(fields, await visit.resource(), before, may_be_empty=True)
    if asked.problems:
        return await _one(visit, name, limited=fields, problems=asked.problems)
    quota = {**dict.fromkeys(before), **asked.hard}
    wanted = {"quota": quota, "display_name": fields.get("display_name", "").strip()}
    query = {"wait": _IN_FORCE_S}
    answer = await visits.tried(visit.api.ask("PATCH", path, query, body=wanted, csrf=fields.get("csrf", "")))
    if isinstance(answer, errors.FairleadError):
        return await _one(visit, name, limited=fields, error=answer)
    return response.Redirect(f"{_address(name)}#quota", status_code=303)


@litestar.post("/console/tenancies/{name:str}/suspend", include_in_schema=False)
async def suspend(visit: Visitor, body: params.RawBody, name: Name) -> response.Redirect:
    """Stop its containers and accept no new ones."""
    return await _change(visit, body, name, "suspend")


@litestar.post("/console/tenancies/{name:str}/resume", include_in_schema=False)
async def resume(visit: Visitor, body: params.RawBody, name: Name) -> response.Redirect:
    """Accept containers again."""
    return await _change(visit, body, name, "resume")


@litestar.post("/console/tenancies/{name:str}/delete", include_in_schema=False)
async def delete(visit: Visitor, body: params.RawBody, name: Name) -> response.Redirect:
    """Delete it, with its containers, volumes and secrets."""
    await visit.api.ask("DELETE", f"/v1/tenancies/{client.part(name)}", csrf=visits.form(body).get("csrf", ""))
    return response.Redirect(_ALL, status_code=303)


@litestar.post("/console/tenancies/{name:str}/members", include_in_schema=False)
async def grant(visit: Visitor, body: params.RawBody, name: Name) -> litestar.Response[bytes] | response.Redirect:
    """Give an account a role, in place of the one that it has."""
    fields = visits.form(body)
    path = f"/v1/tenancies/{client.part(name)}/members/{client.part(fields.get('account', '').strip() or '-')}"
    asked = visit.api.ask("PUT", path, body={"role": fields.get("role", "")}, csrf=fields.get("csrf", ""))
    answer = await visits.tried(asked)
    if isinstance(answer, errors.FairleadError):
        return await _one(visit, name, fields=fields, error=answer)
    return response.Redirect(f"{_address(name)}#members", status_code=303)


@litestar.post("/console/tenancies/{name:str}/members/remove", include_in_schema=False)
async def revoke(visit: Visitor, body: params.RawBody, name: Name) -> litestar.Response[bytes] | response.Redirect:
    """Take an account's role."""
    fields = visits.form(body)
    path = f"/v1/tenancies/{client.part(name)}/members/{client.part(fields.get('account', '') or '-')}"
    answer = await visits.tried(visit.api.ask("DELETE", path, csrf=fields.get("csrf", "")))
    if isinstance(answer, errors.FairleadError):
        return await _one(visit, name, error=answer)
    return response.Redirect(f"{_address(name)}#members", status_code=303)


ROUTES: Final = (listing, make, detail, limit, suspend, resume, delete, grant, revoke)


def _address(name: str) -> str:
    return f"/console/tenancies/{urllib.parse.quote(name, safe='')}"
