"""Serves the submit form: what it will send is shown as JSON, as curl and as the verb before it is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import gpumap, request
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.serve.v1.nodes.view import CapacityList
from fairlead.serve.v1.statusview import Status
from fairlead.serve.v1.tenancies.view import TenancyList

_BEGIN: Final = {"gpus": "1", "restart": "Never"}


@litestar.get("/console/run", include_in_schema=False)
async def empty(visit: Visitor) -> litestar.Response[bytes]:
    """Show the form; `?image=…&gpus=…` fills it in."""
    return await _form(visit, {**_BEGIN, **visit.query})


@litestar.post("/console/run", include_in_schema=False)
async def send(visit: Visitor, body: params.RawBody) -> litestar.Response[Any]:
    """Show what would be sent, or send it."""
    fields = visits.form(body)
    if fields.get("action") != "run":
        return await _form(visit, fields)
    try:
        wanted = request.request_of(fields)
        answer = await visit.api.ask("POST", "/v1/containers", body=wanted, csrf=fields.get("csrf", ""))
    except errors.Unauthenticated:
        raise
    except errors.FairleadError as error:
        return await _form(visit, fields, error=error, code=errors.row_of(error).http)
    made = answer.value(ContainerView)
    return response.Redirect(f"{gpumap.container_address(made.namespace, made.name)}?done=run", status_code=303)


ROUTES: Final = (empty, send)


async def _form(
    visit: Visit, fields: Mapping[str, str], *, error: errors.FairleadError | None = None, code: int = 200
) -> litestar.Response[bytes]:
    try:
        wanted = request.request_of(fields)
    except errors.Invalid as problem:
        wanted, error = {"image": fields.get("image", "")}, error or problem
    status = await visit.api.get(Status, "/v1/status")
    address = status.address if visit.has_login else ""
    return visit.page(
        "run",
        code=code,
        fields=fields,
        error=error,
        resources=await _resources(visit, status.resource),
        whole=status.resource,
        tenancies=await _tenancies(visit),
        body=json.dumps(wanted, indent=2, ensure_ascii=False),
        curl=request.curl(wanted, address=address, socket=status.socket),
        command=request.command(wanted),
        is_ready=bool(wanted["image"]),
    )


async def _resources(visit: Visit, whole: str) -> list[str]:
    found = {one.resource for one in (await visit.api.get(CapacityList, "/v1/capacity")).items}
    return [whole, *sorted(found - {whole})]


async def _tenancies(visit: Visit) -> list[str]:
    """Return names of tenancies that the caller may run containers in."""
    one = visit.principal
    if not one.is_administrator:
        return sorted(m.tenancy for m in one.memberships if m.tenancy and one.may(Action.CONTAINER_RUN, m.role))
    try:
        return [item.name for item in (await visit.api.get(TenancyList, "/v1/tenancies")).items]
    except errors.FairleadError:
        return []
