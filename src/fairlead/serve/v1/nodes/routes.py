"""Serves the routes of nodes."""

from __future__ import annotations

import litestar

from fairlead.serve.api import page as pages
from fairlead.serve.api.failure import documented
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.nodes.taken import capacity_list, node_view
from fairlead.serve.v1.nodes.view import CapacityList, NodeList
from fairlead.wire.kubernetes import core


@litestar.get("/v1/nodes", dependencies=pages.PAGE, summary="List nodes", responses=documented(), tags=["machine"])
async def list_nodes(services: Dependencies, page: pages.Paged) -> NodeList:
    """Return nodes with what they have and what is taken."""
    pods = (await services.census.list(core.Pod)).items
    nodes = (await services.store.list(core.Node)).items
    items, following = page.cut(nodes, lambda one: (one.metadata.name,))
    return NodeList(items=tuple(node_view(node, pods) for node in items), next=following)


@litestar.get("/v1/capacity", summary="Say what is free and what fits", responses=documented(), tags=["machine"])
async def list_capacity(services: Dependencies) -> CapacityList:
    """Return how many devices are free by resource and model, the largest pod that fits, and how many of each size."""
    pods = (await services.census.list(core.Pod)).items
    return capacity_list((await services.store.list(core.Node)).items, pods)


ROUTES = (list_nodes, list_capacity)
