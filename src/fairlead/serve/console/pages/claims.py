"""Shows claims of devices: what each asks for, what it holds, for whom, why it waits, and what enforces its share."""

from __future__ import annotations

from typing import Annotated, Any, Final

import litestar
from litestar import params, response

from fairlead.serve.accounts.roles import Action
from fairlead.serve.console import client
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import claimfacts, gpumap, tone
from fairlead.serve.console.visit import Visitor
from fairlead.serve.v1.claims.view import ClaimList, ClaimView
from fairlead.serve.v1.events.view import EventList

Namespace = Annotated[str, params.PathParameter()]
Name = Annotated[str, params.PathParameter()]


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
        claim_address=claimfacts.address,
    )


@litestar.get("/console/claims/{namespace:str}/{name:str}", include_in_schema=False)
async def detail(visit: Visitor, namespace: Namespace, name: Name) -> litestar.Response[bytes]:
    """Show one claim."""
    path = f"/v1/claims/{client.part(name)}"
    answer = await visit.api.ask("GET", path, {"namespace": namespace})
    one = answer.value(ClaimView)
    events = (await visit.api.get(EventList, "/v1/events", object=f"resourceclaim/{name}")).items
    spaces = await visit.space_names()
    return visit.page(
        "claim",
        one=one,
        more=claimfacts.more(answer.value(dict[str, Any])),
        events=[event for event in events if event.namespace == one.namespace][-_MOST_EVENTS:],
        space=spaces.get(one.namespace, "" if one.namespace == "default" else one.namespace),
        may_remove=visit.may(Action.CONTAINER_RUN),
        enforced=claimfacts.enforced,
        tone=tone,
        address=gpumap.container_address,
    )


_MOST_EVENTS: Final = 100


@litestar.post("/console/claims/remove", include_in_schema=False)
async def remove(visit: Visitor, body: params.RawBody) -> response.Redirect:
    """Remove a claim, or have it go with the last container that uses it."""
    fields = visits.form(body)
    path, asked = f"/v1/claims/{client.part(fields.get('name', ''))}", {"namespace": fields.get("namespace", "")}
    await visit.api.ask("DELETE", path, asked, csrf=fields.get("csrf", ""))
    return response.Redirect("/console/claims", status_code=303)


ROUTES: Final = (listing, detail, remove)
