"""Shows named volumes: which containers mount each, and a form that makes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import gpumap, tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.tenancies.view import TenancyList
from fairlead.serve.v1.volumes.view import VolumeList


@litestar.get("/console/volumes", include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List volumes."""
    return await _page(visit)


@litestar.post("/console/volumes", include_in_schema=False)
async def make(visit: Visitor, body: params.RawBody) -> litestar.Response[bytes] | response.Redirect:
    """Make a volume."""
    fields = visits.form(body)
    wanted = {name: fields.get(name, "").strip() for name in ("name", "namespace", "size")}
    try:
        await visit.api.ask("POST", "/v1/volumes", body=wanted, csrf=fields.get("csrf", ""))
    except errors.Unauthenticated:
        raise
    except errors.FairleadError as error:
        return await _page(visit, fields=fields, error=error, code=errors.row_of(error).http)
    return response.Redirect("/console/volumes", status_code=303)


@litestar.post("/console/volumes/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody) -> response.Redirect:
    """Remove a volume with its files."""
    fields = visits.form(body)
    path, asked = f"/v1/volumes/{client.part(fields.get('name', ''))}", {"namespace": fields.get("namespace", "")}
    await visit.api.ask("DELETE", path, asked, csrf=fields.get("csrf", ""))
    return response.Redirect("/console/volumes", status_code=303)


ROUTES: Final = (listing, make, remove)


async def _page(
    visit: Visit,
    *,
    fields: Mapping[str, str] | None = None,
    error: errors.FairleadError | None = None,
    code: int = 200,
) -> litestar.Response[bytes]:
    return visit.page(
        "volumes",
        code=code,
        items=(await visit.api.get(VolumeList, "/v1/volumes")).items,
        error=error,
        fields=fields or {},
        spaces=await _spaces(visit),
        may_write=visit.may(Action.VOLUME_WRITE),
        address=gpumap.container_address,
        tone=tone,
    )


async def _spaces(visit: Visit) -> list[tuple[str, str]]:
    """Return namespaces in which the caller may make volumes, and what people call them."""
    roles = {m.uid: m.role for m in visit.principal.memberships}
    try:
        found = (await visit.api.get(TenancyList, "/v1/tenancies")).items
    except (errors.RequestError, errors.Denied, errors.Unavailable):
        found = ()
    own = [(item.namespace, item.name) for item in found if visit.is_root or item.uid in roles]
    return [("default", "none"), *own] if visit.is_root else own
