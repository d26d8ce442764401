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
    answer = await visits.tried(visit.api.ask("POST", "/v1/volumes", body=wanted, csrf=fields.get("csrf", "")))
    if isinstance(answer, errors.FairleadError):
        return await _page(visit, fields=fields, error=answer)
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
) -> litestar.Response[bytes]:
    return visit.page(
        "volumes",
        items=(await visit.api.get(VolumeList, "/v1/volumes")).items,
        error=error,
        fields=fields or {},
        spaces=await visit.spaces(),
        names=await visit.space_names(),
        may_write=visit.may(Action.VOLUME_WRITE),
        address=gpumap.container_address,
        tone=tone,
    )
