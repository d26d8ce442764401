"""Serves the routes of GPUs: what there is, who holds it, how they are linked, and faults of simulated ones."""

from __future__ import annotations

import litestar
from litestar import params, status_codes

from fairlead.serve.api.failure import documented
from fairlead.serve.backend import hardware
from fairlead.serve.backend.port import require
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.gpus import faultview, neighbourview


@litestar.get("/v1/gpus", summary="List GPUs", responses=documented(404), tags=["machine"])
async def list_gpus(services: Dependencies) -> hardware.GPUListing:
    """Return GPUs, how each is and who holds it; on a cluster those of all nodes, as their agents publish them."""
    return await services.backend.hardware.list_gpus()


@litestar.get("/v1/topology", summary="Show how GPUs are linked", responses=documented(404), tags=["machine"])
async def show_topology(services: Dependencies) -> hardware.TopologyList:
    """Return, node by node, GPUs and the closest way between each two of them."""
    return await services.backend.hardware.list_topologies()


@litestar.post(
    "/v1/faults",
    summary="Break simulated silicon",
    responses=documented(400, 403, 404, 409, 422, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["machine"],
)
async def inject_fault(services: Dependencies, data: params.JSONBody[faultview.FaultRequest]) -> faultview.FaultDone:
    """Apply one fault to simulated silicon: this machine's, or a node's of the cluster; real silicon is refused."""
    faults = require(services.backend.faults)
    done = await faults.inject(data.fault, gpu=data.gpu, value=data.value, node=data.node)
    return faultview.FaultDone(message=done)


@litestar.post(
    "/v1/gpus:end-neighbours",
    summary="End programs that Fairlead did not start",
    responses=documented(400, 403, 404, 422, 503),
    status_code=status_codes.HTTP_200_OK,
    tags=["machine"],
)
async def end_neighbours(
    services: Dependencies, data: params.JSONBody[neighbourview.EndRequest]
) -> hardware.EndedNeighbours:
    """End programs on GPUs that Fairlead did not start: SIGTERM, after some seconds SIGKILL."""
    by = "root" if services.principal is None else services.principal.account
    return await require(services.backend.neighbours).end(data.gpus, data.ids, by=by)


ROUTES = (list_gpus, show_topology, inject_fault, end_neighbours)
