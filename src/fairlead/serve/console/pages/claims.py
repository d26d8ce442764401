"""Shows claims of devices: what each asks for, what it holds, for whom, and why it waits."""

from __future__ import annotations

from typing import Final

import litestar
from litestar import params, response

from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import gpumap, tone
from fairlead.serve.console.visit import Visitor
from fairlead.serve.v1.claims.view import ClaimList


@litestar.get("/console/claims", include_in_schema=False)
async def listing(visit: Visitor) -> litestar.Response[bytes]:
    """List claims."""
    return visit.page(
        "claims",
        items=(await visit.api.get(ClaimList, "/v1/claims")).items,
        spaces=await visit.space_names(),
        may_remove=visit.may(Action.CONTAINER_RUN),
        tone=tone,
        address=gpumap.container_address,
    )


@litestar.post("/console/claims/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody) -> response.Redirect:
    """Remove a claim, or have it go with the last container that uses it."""
    fields = visits.form(body)
    path, asked = f"/v1/claims/{client.part(fields.get('name', ''))}", {"namespace": fields.get("namespace", "")}
    await visit.api.ask("DELETE", path, asked, csrf=fields.get("csrf", ""))
    return response.Redirect("/console/claims", status_code=303)


ROUTES: Final = (listing, remove)
