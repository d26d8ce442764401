"""Routes that change a container while it runs: another one joins it."""

from __future__ import annotations

import litestar
from litestar import params, status_codes

from fairlead.serve.api.failure import documented
from fairlead.serve.backend.containers.pods import find_pod
from fairlead.serve.backend.port import require
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.debug import request
from fairlead.serve.v1.containers.parameters import Name, Namespace
from fairlead.serve.v1.containers.view import ContainerPart
from fairlead.serve.v1.dependencies import Dependencies


@litestar.post(
    "/v1/containers/{name:str}/ephemeralcontainers",
    summary="Join a running container with another one",
    responses=documented(400, 403, 404, 409, 422, 503),
    status_code=status_codes.HTTP_201_CREATED,
    tags=["container"],
)
async def debug_container(
    services: Dependencies, name: Name, data: params.JSONBody[request.DebugRequest], namespace: Namespace = "default"
) -> ContainerPart:
    """Add an ephemeral container, which shares network, host name and shared memory; it ends with the container.

    It is started by the node, stays in the record when it has ended, and is read, joined and entered by its name:
    `logs`, `attach` and `exec` with `container`.
    """
    pod = await find_pod(services.store, name, namespace)
    item = request.container(data, pod)
    joining = require(services.backend.ephemerals)
    changed = await joining.add(pod, item, services.backend.places.again(pod))
    return next(part for part in view.container_view(changed).containers if part.name == item.name)


ROUTES = (debug_container,)
