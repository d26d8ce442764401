"""Routes of nodes."""

from __future__ import annotations

import litestar

from fairlead.serve.api.failure import documented
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.serve.v1.nodeview import NodeList, node_view
from fairlead.wire.kubernetes import core


@litestar.get("/v1/nodes", summary="List nodes", responses=documented(), tags=["machine"])
async def list_nodes(services: Dependencies) -> NodeList:
    """Return nodes with what they have and what is taken."""
    pods = (await services.census.list(core.Pod)).items
    nodes = (await services.store.list(core.Node)).items
    return NodeList(items=tuple(node_view(node, pods) for node in nodes))


ROUTES = (list_nodes,)
