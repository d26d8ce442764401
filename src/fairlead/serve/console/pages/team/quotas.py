"""Shows quotas: what the containers of a namespace may ask for together; makes, changes and removes them."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.plan.tenancy import baseline
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import amounts, limits
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.quotas.view import QuotaList, QuotaView

Namespace = Annotated[str, params.PathParameter()]
Name = Annotated[str, params.PathParameter()]
_ALL: Final = "/console/quotas"
_NAME: Final = "limits"
"""Of a quota that is made here, where the person names none."""
_USER: Final = re.compile(r"user-[0-9]{1,10}")
"""Namespace of a user of the machine, who need not have run anything yet."""


@litestar.get(_ALL, include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List quotas."""
    return await _page(visit, {})


@litestar.post(_ALL, include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Make a quota."""
    fields = visits.form(body)
    resource = await visit.resource()
    asked = limits.read(fields, resource)
    problems = dict(asked.problems)
    namespace = await _namespace(visit, fields.get("where", "").strip())
    if not namespace:
        problems["where"] = f'there is no tenancy or namespace "{errors.readable(fields.get("where", "")[:60])}"'
    name = fields.get("name", "").strip() or _NAME
    own = await visit.api.get(QuotaList, "/v1/quotas", namespace=namespace or None) if not problems else None
    if own is not None and any(one.name == name and one.namespace == namespace for one in own.items):
        problems["name"] = f'there is a quota "{name}" already: change it, or choose another name'
    if problems:
        return await _page(visit, fields, problems=problems)
    answer = await visits.tried(_put(visit, name, namespace, asked.hard, fields))
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, fields, error=answer)
    return response.Redirect(f"{_ALL}#{_row(namespace, name)}", status_code=303)


@litestar.get("/console/quotas/{namespace:str}/{name:str}", include_in_schema=False)
async def detail(visit: Visitor, namespace: Namespace, name: Name) -> litestar.Response[bytes]:
    """Show one quota."""
    one = await _found(visit, namespace, name)
    return await _one(visit, one, limits.filled(one.hard, await visit.resource()))


@litestar.post("/console/quotas/{namespace:str}/{name:str}", include_in_schema=False)
async def change(
    visit: Visitor, body: params.RawBody, namespace: Namespace, name: Name
) -> litestar.Response[bytes] | response.Redirect:
    """Change one quota; containers that run go on."""
    fields = visits.form(body)
    one = await _found(visit, namespace, name)
    asked = limits.read(fields, await visit.resource(), one.hard)
    if asked.problems:
        return await _one(visit, one, fields, problems=asked.problems)
    answer = await visits.tried(_put(visit, one.name, one.namespace, asked.hard, fields))
    if isinstance(answer, errors.FairleadError):
        return await _one(visit, one, fields, error=answer)
    return response.Redirect(f"{_ALL}#{_row(one.namespace, one.name)}", status_code=303)


@litestar.post("/console/quotas/{namespace:str}/{name:str}/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody, namespace: Namespace, name: Name) -> response.Redirect:
    """Remove one quota."""
    csrf = visits.form(body).get("csrf", "")
    await visit.api.ask("DELETE", f"/v1/quotas/{client.part(name)}", {"namespace": namespace}, csrf=csrf)
    return response.Redirect(_ALL, status_code=303)


ROUTES: Final = (listing, make, detail, change, remove)


async def _put(visit: Visit, name: str, namespace: str, hard: Mapping[str, str], fields: Mapping[str, str]) -> None:
    item = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"hard": dict(hard)},
    }
    await visit.api.ask("PUT", "/v1/quotas", body=item, csrf=fields.get("csrf", ""))


async def _found(visit: Visit, namespace: str, name: str) -> QuotaView:
    return await visit.api.get(QuotaView, f"/v1/quotas/{client.part(name)}", namespace=namespace)


async def _namespace(visit: Visit, text: str) -> str:
    """Return the namespace that a person means; empty: there is none of this name, and a slip makes none."""
    spaces = await visit.space_names()
    named = {name: namespace for namespace, name in spaces.items()}
    known = {*spaces, "default", *(one.namespace for one in (await visit.api.get(QuotaList, "/v1/quotas")).items)}
    return named.get(text) or (text if text in known or _USER.fullmatch(text) else "")


def _row(namespace: str, name: str) -> str:
    return urllib.parse.quote(f"quota-{namespace}-{name}", safe="")


def _address(one: QuotaView) -> str:
    return f"{_ALL}/{urllib.parse.quote(one.namespace, safe='')}/{urllib.parse.quote(one.name, safe='')}"


def _is_changed_here(one: QuotaView) -> bool:
    """Return whether a quota is a person's: a tenancy's own follows the tenancy, and scopes need a manifest."""
    is_tenancys = one.name == baseline.QUOTA and baseline.is_namespace_name(one.namespace)
    return not is_tenancys and not one.scopes


async def _page(
    visit: Visit,
    fields: Mapping[str, str],
    *,
    problems: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    found = (await visit.api.get(QuotaList, "/v1/quotas")).items
    spaces = await visit.space_names()
    may_write = visit.may(Action.MACHINE_WRITE)
    return visit.page(
        "quotas",
        items=[(one, amounts.meters(one.hard, one.used), _is_changed_here(one)) for one in found],
        spaces=spaces,
        may_write=may_write,
        limits=limits.fields(await visit.resource()) if may_write else (),
        fields=fields,
        problems=problems or {},
        error=error,
        code=422 if problems else None,
        address=_address,
    )


async def _one(
    visit: Visit,
    one: QuotaView,
    fields: Mapping[str, str],
    *,
    problems: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
) -> litestar.Response[bytes]:
    spaces = await visit.space_names()
    return visit.page(
        "quota",
        one=one,
        space=spaces.get(one.namespace, one.namespace),
        tenancy=spaces.get(one.namespace, ""),
        meters=amounts.meters(one.hard, one.used),
        may_write=visit.may(Action.MACHINE_WRITE) and _is_changed_here(one),
        limits=limits.fields(await visit.resource()),
        fields=fields,
        problems=problems or {},
        error=error,
        code=422 if problems else None,
        here=_address(one),
    )
