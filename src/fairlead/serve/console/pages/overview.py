"""Shows the overview: every GPU of every node, what it is divided into, who holds it and how it is."""

from __future__ import annotations

import collections
from typing import Final

import litestar

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.backend.hardware import GPUListing
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import gpumap, lines, tone
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.history.view import GPUMetricsList
from fairlead.serve.v1.containers.view import ContainerList
from fairlead.serve.v1.nodes.view import CapacityList
from fairlead.serve.v1.status.view import Status

_NOTHING: Final = GPUListing(gpus=(), unreadable=(), drivers=(), is_simulated=False)


@litestar.get("/console/", include_in_schema=False)
async def overview(visit: Visitor) -> litestar.Response[bytes]:
    """Show the machine."""
    listing = await _gpus(visit)
    glance = await _glance(visit)
    may_read = visit.may(Action.CONTAINER_READ)
    found = (await visit.api.get(ContainerList, "/v1/containers")).items if may_read else ()
    return visit.page(
        "overview",
        nodes=gpumap.nodes(listing),
        listing=listing,
        periods=glance.periods,
        sparks=collections.defaultdict(lambda: None, {one.gpu: lines.spark(one.loads) for one in glance.items}),
        status=await visit.api.get(Status, "/v1/status"),
        capacity=(await visit.api.get(CapacityList, "/v1/capacity")).items,
        containers=found,
        waiting=[one for one in found if one.state == "pending"],
        spaces=await visit.space_names(),
        tone=tone,
        address=gpumap.container_address,
    )


async def _glance(visit: Visit) -> GPUMetricsList:
    """Return what GPUs did lately; nothing where it is not kept, or not to be seen."""
    if not visit.may(Action.CONTAINER_READ):
        return GPUMetricsList(items=())
    found = await visits.tried(visit.api.get(GPUMetricsList, "/v1/gpus/metrics"))
    return GPUMetricsList(items=()) if isinstance(found, errors.FairleadError) else found


async def _gpus(visit: Visit) -> GPUListing:
    try:
        return await visit.api.get(GPUListing, "/v1/gpus")
    except errors.NotFound:
        return _NOTHING


ROUTES: Final = (overview,)
