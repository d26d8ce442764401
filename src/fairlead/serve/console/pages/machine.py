"""Shows the machine to its administrators: nodes, and the state of each GPU between its tenants, with quarantine."""

from __future__ import annotations

from typing import Final

import litestar
from litestar import params, response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.backend.hardware import GPUListing
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import amounts, tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.leases.view import LeaseList, LeaseView
from fairlead.serve.v1.nodes.view import NodeList, NodeView
from fairlead.serve.v1.status.view import Status


@litestar.get("/console/machine", include_in_schema=False)
async def machine(visit: Visitor) -> litestar.Response[bytes]:
    """Show nodes and leases."""
    leases, absent = await _leases(visit)
    try:
        listing = await visit.api.get(GPUListing, "/v1/gpus")
        order = {one.gpu.uuid: place for place, one in enumerate(listing.gpus)}
        names = {one.gpu.uuid: f"GPU {one.gpu.index}" for one in listing.gpus}
        outsiders = [(names[one.gpu.uuid], each) for one in listing.gpus for each in one.neighbours]
    except errors.NotFound:
        names, order, outsiders = {}, {}, []
    nodes = (await visit.api.get(NodeList, "/v1/nodes")).items
    return visit.page(
        "machine",
        status=await visit.api.get(Status, "/v1/status"),
        nodes=[(one, amounts.meters(_counted(one), one.used)) for one in nodes],
        leases=sorted(leases, key=lambda one: (order.get(one.gpu, len(order)), one.gpu)),
        absent=absent,
        names=names,
        outsiders=outsiders,
        may_write=visit.may(Action.MACHINE_WRITE),
        tone=tone,
        spaces=await visit.space_names(),
    )


def _counted(one: NodeView) -> dict[str, str]:
    """Return a node's use of the resources that are measured: its containers are not added up."""
    return {name: amount for name, amount in one.allocatable.items() if name != "pods" or name in one.used}


async def _leases(visit: Visit) -> tuple[tuple[LeaseView, ...], errors.FairleadError | None]:
    try:
        return (await visit.api.get(LeaseList, "/v1/leases")).items, None
    except errors.Unauthenticated:
        raise
    except (errors.Unavailable, errors.RequestError, errors.Denied) as error:
        return (), error


async def _change(visit: Visit, body: bytes, verb: str) -> response.Redirect:
    fields = visits.form(body)
    asked = {"gpu": fields.get("gpu", ""), "why": fields.get("why", "")}
    await visit.api.ask("POST", f"/v1/leases:{verb}", body=asked, csrf=fields.get("csrf", ""))
    return response.Redirect("/console/machine#leases", status_code=303)


@litestar.post("/console/machine/quarantine", include_in_schema=False)
async def quarantine(visit: Visitor, body: params.RawBody) -> response.Redirect:
    """Give a GPU to no tenant until it is released."""
    return await _change(visit, body, "quarantine")


@litestar.post("/console/machine/release", include_in_schema=False)
async def release(visit: Visitor, body: params.RawBody) -> response.Redirect:
    """Release a GPU from quarantine."""
    return await _change(visit, body, "release")


ROUTES: Final = (machine, quarantine, release)
